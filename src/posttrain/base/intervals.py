"""95 % confidence interval of a mean difference, valid for few samples too.

The usual interval, ± 1.96·s/√n, holds the true mean in 85 % of the cases where 30 problems are asked and few of them
change, and says ± 0 where all change alike. For differences of 0 and 1 Agresti and Min (Statistics in Medicine 24,
2005) add half a case to each cell of the table: two more problems, one of which stays as it is, while the other rises
by half a case and falls by half a case. The same is done here for differences of any size, with the largest one that
was seen in the place of 1, and with Student's t.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

_COVERED = 0.95


def mean_interval(differences: Sequence[float]) -> tuple[float, float]:
    """The lower and the upper end for the mean of differences between -1 and 1, of which there is at least one."""
    largest = max(map(abs, differences)) or 1.0
    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(each * each for each in differences) + largest**2) / count - mean**2
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)


@lru_cache
def t_quantile(freedom: int) -> float:
    """The t between whose two signs 95 % of Student's distribution lie, for so many degrees of freedom."""
    low, high = 1.0, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < _COVERED else (low, middle)
    return low


def _between(t: float, freedom: int) -> float:
    """How much of Student's distribution lies between -t and t: a finite sum for whole degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for step in range(2 + odd, freedom - 1 + odd, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
