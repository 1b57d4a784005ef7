"""A share of the slots that changes over the run, as whole numbers of slots.

All in exact fractions: how many slots were filled before any iteration is then a formula, and not a counter.
"""

from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from math import floor
from operator import itemgetter


class Schedule:
    """Linear between the points, constant before the first and after the last."""

    def __init__(self, points: Mapping[int, float]) -> None:
        """`points`: shares in [0, 1] by iteration, at least one."""
        # By way of the text, so that 0.1 is a tenth.
        self._points = [(iteration, Fraction(str(share))) for iteration, share in sorted(points.items())]

    def at(self, iteration: int) -> Fraction:
        """The share at an iteration."""
        right = bisect_right(self._points, iteration, key=itemgetter(0))
        if right in (0, len(self._points)):
            return self._points[max(0, right - 1)][1]
        (start, low), (end, high) = self._points[right - 1 : right + 1]
        return low + (high - low) * Fraction(iteration - start, end - start)

    def total(self, draws: int, stride: int) -> Fraction:
        """Σ at(stride·j) over j = 0 … draws − 1: from each point to the next it is an arithmetic series."""
        total, start = Fraction(0), 0
        for bound in (*(-(-iteration // stride) for iteration, _ in self._points), draws):
            end = min(bound, draws)
            if end > start:
                total += (end - start) * (self.at(stride * start) + self.at(stride * (end - 1))) / 2
                start = end
        return total


def easy_numbers(share: Schedule, draw: int, stride: int, slots: int) -> range:
    """Which rows of the easy data set, counted over the whole run, draw number `draw` takes.

    Up to and including draw d the run has taken ⌊slots·Σ share⌋ of them, so that each draw takes
    ⌊slots·share + u⌋ with u in [0, 1), and every beginning of the run is within one row of its share.
    """
    return range(floor(slots * share.total(draw, stride)), floor(slots * share.total(draw + 1, stride)))


def replay_slots(replay: Fraction, easy: Fraction, left: int, chance: float) -> int:
    """⌊replay/(1 − easy)·left + chance⌋: how many of the `left` slots that are not easy are replayed.

    `left` is (1 − easy)·slots on average, so with a chance that is uniform in [0, 1) this is replay·slots on
    average; and it is never more than `left`.
    """
    return floor(replay / (1 - easy) * left + Fraction(chance)) if left else 0
