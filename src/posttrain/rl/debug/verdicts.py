"""What the filters of a config say about the groups of `toolkit-rl-debug`."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.table import Table

from posttrain.base.console import new_table
from posttrain.rl.debug.groups import Group
from posttrain.rl.rollout.filters.base import Filter
from posttrain.rl.rollout.filters.catalogue import Rejection, rejection

Verdicts = Sequence[Rejection | None]
"""For each group: why it is rejected, or None."""


def judged(groups: Sequence[Group], filters: Sequence[Filter]) -> list[Rejection | None]:
    """The verdict on each group; one whose prompt is too long has no completions to judge.

    Raises:
        RunError: the user's function failed.
    """
    return [rejection(filters, group.completions, group.iteration) if group.completions else None for group in groups]


def told_verdict(verdict: Rejection | None) -> str:
    """The verdict on one group as a line."""
    return "accepted by the filters" if verdict is None else f"rejected by {verdict.name}: {verdict.reason}"


def filter_table(groups: Sequence[Group], verdicts: Verdicts, filters: Sequence[Filter]) -> Table:
    """How many groups each filter rejects; a group counts for the first that does."""
    counts = Counter(verdict.name for verdict in verdicts if verdict is not None)
    there = sum(bool(group.completions) for group in groups)
    table = new_table("Filters", "", "rejected groups", "share")
    for name in dict.fromkeys(each.name for each in filters):
        table.add_row(name, f"{counts[name]} of {there}", f"{counts[name] / there:.0%}" if there else "–")
    return table


def verdict_findings(groups: Sequence[Group], verdicts: Verdicts, stop_after: int) -> Iterator[str]:
    """Say so if no group would be trained; `stop_after`: `rollout.stop_without_signal`."""
    there = sum(bool(group.completions) for group in groups)
    counts = Counter(verdict.name for verdict in verdicts if verdict is not None)
    if there and counts.total() == there:
        yield (
            f"rollout.filters reject all {there} groups ({', '.join(f'{name} {n}' for name, n in counts.items())}); a "
            f"run would stop after {stop_after} such steps: change the filters, the prompts or the rewards"
        )
