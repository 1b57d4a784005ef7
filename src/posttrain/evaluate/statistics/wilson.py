"""95 % confidence interval of a share of right answers, or of another mean of values in [0, 1]."""

import math
from collections.abc import Hashable, Sequence

from posttrain.base.intervals.paired import NORMAL_QUANTILE
from posttrain.base.intervals.spread import Interval, clustered, spread


def share_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """Interval for the mean of one or more values in [0, 1].

    Wilson (JASA 22, 1927) for values of 0 and 1. For others, and for clusters, it is Wilson's for the number of
    independent values of 0 and 1 that would be as certain, as Franco et al. recommend (Journal of Survey Statistics and
    Methodology 7, 2019).

    Args:
        clusters: the cluster of each value; None if they are independent.
    """
    found = spread(clustered(values, clusters))
    number = found.effective_prompts(found.mean * (1 - found.mean), whole=set(values) <= {0, 1})
    low, high = wilson(found.mean, number)
    return Interval(low, high, "Wilson" if number == found.prompts else "Wilson, effective number of prompts")


def wilson(share: float, number: float) -> tuple[float, float]:
    """(p + z²/2n ± z·√(p(1 - p)/n + z²/4n²)) / (1 + z²/n), for a share p of n values, which need not be whole."""
    square = NORMAL_QUANTILE**2
    middle = number * share + square / 2
    half = NORMAL_QUANTILE * math.sqrt(number * share * (1 - share) + square / 4)
    return max(0.0, (middle - half) / (number + square)), min(1.0, (middle + half) / (number + square))
