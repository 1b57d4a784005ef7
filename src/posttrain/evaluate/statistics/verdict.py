"""A comparison in words."""

from typing import Literal

from posttrain.base.intervals.paired import FEWEST
from posttrain.evaluate.statistics.smallest import LEVEL

Verdict = Literal["better", "worse", "not told apart", "too few prompts"]


def verdict(rise: float | None, p: float, independent: float) -> Verdict:
    """What the adjusted p-value says, at 5 %.

    Args:
        rise: the mean difference, above 0 for a better model; None without prompts.
        independent: the number of prompts, or of equal clusters that say as much as the clusters do.
    """
    if rise is None or independent < FEWEST:
        return "too few prompts"
    if p > LEVEL:
        return "not told apart"
    return "better" if rise > 0 else "worse"
