"""What the tables of results are made of."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

_NAMES = ("data set", "stage", "grader", "reward")


@dataclass
class Mean:
    """The mean of the values that are there."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float | None) -> None:
        """Count a value in, if it is there."""
        if value is not None:
            self.total += value
            self.count += 1

    def __str__(self) -> str:
        """Four digits; a dash where there is no value."""
        return f"{self.total / self.count:.4f}" if self.count else "–"


def table_of(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table that fits into 80 columns: names are folded where they are too long, and never cut off.

    The rows of a data set, whose name comes first in each, are put together under it.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        is_name = column in _NAMES
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    by_dataset: dict[str, list[Sequence[str]]] = {}
    for row in rows:
        by_dataset.setdefault(row[0], []).append(row)
    for dataset, own in by_dataset.items():
        for number, row in enumerate(own):
            table.add_row("" if number else dataset, *row[1:])
    return table


def weight_text(weights: Iterable[float | None]) -> str:
    """Each share of the reward that a grader had, `gate` where it multiplied it; a dash where it had none."""
    return " or ".join(sorted("gate" if weight is None else f"{weight:.3g}" for weight in set(weights))) or "–"
