"""95 % confidence interval of a mean difference, valid for few samples too.

The usual interval, ± 1.96·s/√n, covers the true mean in only 85 % of cases with 30 problems of which few change, and
is ± 0 if all change alike. For paired outcomes of 0 and 1, Agresti and Min (Statistics in Medicine 24, 2005) add half a
case to each cell of the 2 × 2 table. That makes two more problems: one unchanged, the other half a case up and half a
case down. This module does the same for differences of any size, with the largest observed difference in place of 1,
and uses Student's t.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

_COVERED = 0.95


def mean_interval(differences: Sequence[float]) -> tuple[float, float]:
    """Lower and upper bound for the mean of one or more differences between -1 and 1."""
    largest = max(map(abs, differences)) or 1.0
    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(each * each for each in differences) + largest**2) / count - mean**2
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)


@lru_cache
def t_quantile(freedom: int) -> float:
    """The t for which 95 % of Student's distribution with `freedom` degrees of freedom lies between -t and t."""
    low, high = 1.0, 13.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < _COVERED else (low, middle)
    return low


def _between(t: float, freedom: int) -> float:
    """The share of Student's distribution between -t and t: a finite sum for whole degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = total = (cosine if odd else 1.0) if freedom > 1 else 0.0
    for step in range(2 + odd, freedom - 1 + odd, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    return (angle + math.sin(angle) * total) * 2 / math.pi if odd else math.sin(angle) * total
