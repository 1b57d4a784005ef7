"""Numbers of a config that change over the run, as exact fractions."""

from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from operator import itemgetter
from typing import Annotated, TypeVar

from pydantic import Field

N = TypeVar("N")
Points = Annotated[dict[Annotated[int, Field(ge=0)], N], Field(min_length=1)]
"""Numbers by iteration, at least one; a YAML file has the iterations in quotes."""


class Schedule:
    """A number by iteration: linear between the points, constant before the first and after the last."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points`: numbers by iteration, at least one."""
        # Via text, so that 0.1 is exactly a tenth.
        self._points = [(iteration, Fraction(str(number))) for iteration, number in sorted(points.items())]

    def at(self, iteration: int) -> Fraction:
        """The number at an iteration."""
        right = bisect_right(self._points, iteration, key=itemgetter(0))
        if right in (0, len(self._points)):
            return self._points[max(0, right - 1)][1]
        (start, low), (end, high) = self._points[right - 1 : right + 1]
        return low + (high - low) * Fraction(iteration - start, end - start)

    def total(self, draws: int, stride: int) -> Fraction:
        """Σ at(stride·j) over j = 0 … draws − 1, as arithmetic series between consecutive points."""
        total, start = Fraction(0), 0
        for bound in (*(-(-iteration // stride) for iteration, _ in self._points), draws):
            end = min(bound, draws)
            if end > start:
                total += (end - start) * (self.at(stride * start) + self.at(stride * (end - 1))) / 2
                start = end
        return total
