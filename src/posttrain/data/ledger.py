"""Count what became of every row of a data set on its way to the model."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from posttrain.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.table import Table


@dataclass
class Ledger:
    """Counts for one data set, filled while it is tokenised and fixed afterwards.

    `answers` counts the trained assistant turns of kept rows before truncation, `answers_with_end` those that still
    have their end token. `weights` holds the lowest and the highest weight of the kept rows.
    """

    name: str
    records: int = 0
    bad: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    cut_left: int = 0
    cut_right: int = 0
    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    answers: int = 0
    answers_with_end: int = 0
    weights: list[float] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def trained_share(self) -> float:
        """Share of the kept tokens that carry loss."""
        return self.trained_tokens / self.tokens if self.tokens else 0.0

    @property
    def end_share(self) -> float:
        """Share of trained answers whose end token survived truncation."""
        return self.answers_with_end / self.answers if self.answers else 0.0

    def as_dict(self) -> dict[str, Any]:
        """The counts for ledger.json and the cache; `Ledger(**...)` restores them."""
        return asdict(self)

    def drop(self, reason: str) -> None:
        """Count one row that will not be trained."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def count_tokens(self, lengths: "npt.NDArray[np.integer]", trained_counts: "npt.NDArray[np.integer]") -> None:
        """Count the tokens of kept rows; both arrays have shape [rows]."""
        self.tokens += int(lengths.sum())
        self.trained_tokens += int(trained_counts.sum())
        self.longest = max(self.longest, int(lengths.max(initial=0)))

    def count_ends(self, kept: int, lost: int) -> None:
        """Count the answers of kept rows: those that kept their end token, and those that lost it to truncation."""
        self.answers += kept + lost
        self.answers_with_end += kept

    def count_weights(self, weights: "npt.NDArray[np.floating]") -> None:
        """Extend the range of weights to those of kept rows, of shape [rows]."""
        if len(weights):
            found = [*self.weights, float(weights.min()), float(weights.max())]
            self.weights = [min(found), max(found)]

    def weights_summary(self, columns: Iterable[str | None]) -> str | None:
        """Text with the range of weights and the columns they come from; None if all rows weigh 1."""
        if not self.weights or self.weights == [1.0, 1.0]:
            return None
        low, high = self.weights
        return f"weights {low:g}-{high:g} from column {', '.join(sorted(set(filter(None, columns))))}"

    def require_something_to_learn(self, min_end_tokens_kept: float) -> None:
        """Raise DataError if training on this data set would teach nothing, or would teach the model never to stop."""
        if self.trained_tokens == 0:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.dropped.items()) or "none is trainable"
            raise DataError(
                f"datasets.{self.name}: no trained tokens remain from {self.records} rows ({reasons}); "
                "raise chat.max_length or check the columns"
            )
        if self.end_share < min_end_tokens_kept:
            raise DataError(
                f"datasets.{self.name}: only {self.end_share:.1%} of the answers keep their end token after "
                f"truncation, fewer than chat.min_end_tokens_kept = {min_end_tokens_kept:.0%}: a model trained on them "
                "does not learn to stop; raise chat.max_length or set chat.truncation: drop"
            )


def ledger_table(ledgers: list[Ledger]) -> "Table":
    """The ledgers as a table for a terminal."""
    from posttrain.base.console import new_table

    columns = ("data set", "read", "bad", "dropped", "cut", "rows", "tokens", "trained", "longest", "ends")
    table = new_table("Data", *columns, words=("dropped",))
    for ledger in ledgers:
        dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(ledger.dropped.items())) or "0"
        cuts = {"left": ledger.cut_left, "right": ledger.cut_right}
        cut = ", ".join(f"{count} {side}" for side, count in cuts.items() if count) or "0"
        table.add_row(
            ledger.name,
            f"{ledger.records:,}",
            f"{ledger.bad:,}",
            dropped,
            cut,
            f"{ledger.rows:,}",
            f"{ledger.tokens:,}",
            f"{ledger.trained_share:.0%}",
            f"{ledger.longest:,}",
            # Rounded down, so that 100% means that none is lost.
            f"{100 * ledger.answers_with_end // max(1, ledger.answers)}%",
        )
    return table
