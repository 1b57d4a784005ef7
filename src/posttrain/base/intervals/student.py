"""Quantiles of Student's t distribution, and the interval of a mean by them."""

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import stdev

_MOST = 1000
"""More degrees of freedom are taken as these, which makes the quantile for 95 % too large by 0.12 % at most."""


def half_width(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval of the mean of independent values, such as one for each seed; None for one value."""
    return None if len(values) < 2 else t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))


@lru_cache
def t_quantile(freedom: int, covered: float = 0.95) -> float:
    """The t for which a share `covered` of Student's distribution with `freedom` degrees of freedom is within ± t."""
    freedom = min(freedom, _MOST)
    low, high = 0.0, 2.0
    while _between(high, freedom) < covered:
        high *= 2
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if _between(middle, freedom) < covered else (low, middle)
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
