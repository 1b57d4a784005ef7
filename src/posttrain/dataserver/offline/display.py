"""Tables and reasons for missing scores, as both commands print them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from posttrain.base.console import console, new_table
from posttrain.base.text import one_line
from posttrain.dataserver.schemas import Component, GradeResult, Status

_NAMES = ("data set", "stage", "grader", "reward")
_LONGEST_SCORES = 200
_LONGEST_REASON = 160
_SHOWN_REASONS = 8
# Reasons that quote a completion are all different; those beyond are counted without their words.
_REMEMBERED_REASONS = 10_000


def say(*lines: str) -> None:
    """Print each on a line of its own."""
    for line in lines:
        console.print(line)


def counted(count: int, noun: str) -> str:
    """A number of things: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


@dataclass
class Mean:
    """The mean of the values that are there."""

    total: float = 0.0
    count: int = 0
    missing: int = 0

    def add(self, value: float | None) -> None:
        """Count a value in, or that there is none."""
        if value is None:
            self.missing += 1
        else:
            self.total += value
            self.count += 1

    def __str__(self) -> str:
        """Four digits; a dash where there is no value."""
        return f"{self.total / self.count:.4f}" if self.count else "–"


def show_table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table that fits into 80 columns: names are folded where they are too long, and never cut off.

    The rows of a data set, whose name comes first in each, are put together under it; numbers get separators.
    """
    table = new_table("")
    for column in columns:
        is_name = column in _NAMES
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    by_dataset: dict[object, list[Sequence[object]]] = {}
    for row in rows:
        by_dataset.setdefault(row[0], []).append(row)
    for dataset, own in by_dataset.items():
        for number, row in enumerate(own):
            cells = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row[1:])
            table.add_row("" if number else str(dataset), *cells)
    console.print(table, soft_wrap=False)


def weight_text(weights: Iterable[float | None]) -> str:
    """Each share of the reward that a grader had, `gate` where it multiplied it; a dash where it had none."""
    return " or ".join(sorted("gate" if weight is None else f"{weight:.3g}" for weight in set(weights))) or "–"


def outcome(status: Status, value: float | None) -> str:
    """The reward or score with four digits, or why there is none."""
    return status if value is None else f"{value:.4f}"


def scores_text(components: Mapping[str, Component], before: Mapping[str, Component] | None = None) -> str:
    """What each grader says, with its own words on it; with `before`, only those that say something else now."""
    said = []
    for name, now in components.items():
        was = None if before is None else before.get(name)
        if was is None or (was.status, was.score) != (now.status, now.score):
            start = "" if was is None else f"{outcome(was.status, was.score)} → "
            said.append(f"{name} {start}{outcome(now.status, now.score)}{f', {now.detail}' if now.detail else ''}")
    return one_line("; ".join(said), _LONGEST_SCORES)


class Reasons:
    """Counts why completions have no score, and remembers where each reason came first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, str] = {}

    @property
    def total(self) -> int:
        """How many were counted."""
        return self._counts.total()

    def add(self, reason: str, place: str) -> None:
        """Count a reason of the completion that stands at `place`."""
        line = one_line(reason, _LONGEST_REASON)
        if line not in self._counts and len(self._counts) >= _REMEMBERED_REASONS:
            line = "other reasons"
        self._counts[line] += 1
        self._places.setdefault(line, place)

    def add_result(self, result: GradeResult, place: str) -> None:
        """Count why graders gave no score; where none of them was asked, why there is no reward."""
        missing = [(name, each) for name, each in result.components.items() if each.score is None]
        for name, component in missing:
            self.add(f"{component.status}: {name}: {component.detail or 'no reason given'}", place)
        if result.reward is None and not missing:
            self.add(f"{result.status}: {result.reason}", place)

    def lines(self) -> list[str]:
        """The most common ones first."""
        shown = self._counts.most_common(_SHOWN_REASONS)
        lines = [f"  {count:>7,}  {reason} (first: {self._places[reason]})" for reason, count in shown]
        hidden = len(self._counts) - len(shown)
        return [*lines, f"           ... and {counted(hidden, 'other reason')}"] if hidden else lines
