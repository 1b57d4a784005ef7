"""Lengths of texts in a few numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean


@dataclass(frozen=True)
class Lengths:
    """Mean, median, 95th percentile and maximum of lengths; a percentile is the length of one of the texts."""

    mean: float
    p50: int
    p95: int
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> "Lengths | None":
        """The numbers for these lengths; None if there are none."""
        if not lengths:
            return None
        ordered = sorted(lengths)
        p50, p95 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.95))
        return cls(fmean(ordered), p50, p95, ordered[-1])

    @property
    def shown(self) -> tuple[str, str, str, str]:
        """The numbers for the columns mean, p50, p95 and max of a table."""
        return f"{self.mean:,.1f}", f"{self.p50:,}", f"{self.p95:,}", f"{self.max:,}"
