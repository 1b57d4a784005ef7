"""What the tables of results are made of."""

from collections.abc import Iterable
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


def new_table(*columns: str) -> Table:
    """A table that fits into 80 columns: names are folded where they are too long, and never cut off."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        is_name = column in _NAMES
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    return table


def weight_text(weights: Iterable[float | None]) -> str:
    """Each share of the reward that a grader had, `gate` where it multiplied it; a dash where it had none."""
    return " or ".join(sorted("gate" if weight is None else f"{weight:.3g}" for weight in set(weights))) or "–"
