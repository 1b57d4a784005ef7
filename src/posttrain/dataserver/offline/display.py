"""Print tables and reasons for missing scores, for toolkit-rl-grade and toolkit-rl-regrade."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from posttrain.base.console import console, new_table
from posttrain.base.text import counted, one_line
from posttrain.dataserver.schemas import Component, GradeResult, Status

_NAMES = ("data set", "stage", "grader", "reward")
_LONGEST_SCORES = 200
_LONGEST_REASON = 160
_SHOWN_REASONS = 8
# Reasons that quote a completion are all different; new ones beyond this number are counted together.
_REMEMBERED_REASONS = 10_000


def say(*lines: str) -> None:
    """Print each argument on its own line."""
    for line in lines:
        console.print(line)


@dataclass
class Mean:
    """The mean of the values that are not missing."""

    total: float = 0.0
    count: int = 0
    missing: int = 0

    def add(self, value: float | None) -> None:
        """Add a value, or count a missing one."""
        if value is None:
            self.missing += 1
        else:
            self.total += value
            self.count += 1

    def __str__(self) -> str:
        """The mean with four decimals; a dash if there are no values."""
        return f"{self.total / self.count:.4f}" if self.count else "–"


def show_table(columns: Iterable[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table that fits into 80 columns: names that are too long are folded, never cut off.

    Rows are grouped by data set, whose name is their first cell; integers get thousands separators.
    """
    table = new_table("", *columns, words=_NAMES)
    by_dataset: dict[object, list[Sequence[object]]] = {}
    for row in rows:
        by_dataset.setdefault(row[0], []).append(row)
    for dataset, own in by_dataset.items():
        for number, row in enumerate(own):
            cells = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row[1:])
            table.add_row("" if number else str(dataset), *cells)
    console.print(table, soft_wrap=False)


def weight_text(weights: Iterable[float | None]) -> str:
    """The distinct weights of a grader, as `gate` for None; a dash if there are none."""
    return " or ".join(sorted("gate" if weight is None else f"{weight:.3g}" for weight in set(weights))) or "–"


def outcome(status: Status, value: float | None) -> str:
    """The reward or score with four decimals, or the status if there is none."""
    return status if value is None else f"{value:.4f}"


def scores_text(components: Mapping[str, Component], before: Mapping[str, Component] | None = None) -> str:
    """Each grader's score and detail; with `before`, only graders that are new or whose score or status changed."""
    said = []
    for name, now in components.items():
        was = None if before is None else before.get(name)
        if was is None or (was.status, was.score) != (now.status, now.score):
            start = "" if was is None else f"{outcome(was.status, was.score)} → "
            said.append(f"{name} {start}{outcome(now.status, now.score)}{f', {now.detail}' if now.detail else ''}")
    return one_line("; ".join(said), _LONGEST_SCORES)


class Reasons:
    """Counts why completions have no score, and remembers where each reason first occurred."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, str] = {}

    @property
    def total(self) -> int:
        """How many reasons were counted."""
        return self._counts.total()

    def add(self, reason: str, place: str) -> None:
        """Count a reason for the completion at `place`."""
        line = one_line(reason, _LONGEST_REASON)
        if line not in self._counts and len(self._counts) >= _REMEMBERED_REASONS:
            line = "other reasons"
        self._counts[line] += 1
        self._places.setdefault(line, place)

    def add_result(self, result: GradeResult, place: str) -> None:
        """Count why graders gave no score; if no grader was asked, why there is no reward."""
        missing = [(name, each) for name, each in result.components.items() if each.score is None]
        for name, component in missing:
            self.add(f"{component.status}: {name}: {component.detail or 'no reason given'}", place)
        if result.reward is None and not missing:
            self.add(f"{result.status}: {result.reason}", place)

    def lines(self) -> list[str]:
        """The lines to print, the most common reasons first."""
        shown = self._counts.most_common(_SHOWN_REASONS)
        lines = [f"  {count:>7,}  {reason} (first: {self._places[reason]})" for reason, count in shown]
        hidden = len(self._counts) - len(shown)
        return [*lines, f"           ... and {counted(hidden, 'other reason')}"] if hidden else lines
