"""95 % confidence interval of a mean paired difference, valid for few prompts too.

The usual interval, ± 1.96·s/√N, covers the true mean in only 85 % of cases with 30 prompts of which few change, and is
± 0 if all change alike. Tango (Statistics in Medicine 17, 1998) asks instead for which means the observed difference
is within what such a mean would give, for outcomes of 0 and 1. Other rewards have another variance, which is estimated:
the interval is that of the number of independent outcomes of 0 and 1 that would be as certain.
"""

import math
from collections.abc import Hashable, Sequence
from statistics import NormalDist

from posttrain.base.intervals.spread import Interval, clustered, spread

COVERED = 0.95
NORMAL_QUANTILE = NormalDist().inv_cdf((1 + COVERED) / 2)
"""1.96: 95 % of a normal distribution is within so many standard deviations."""

FEWEST = 30
"""Fewer prompts, or clusters that say no more than so many equal ones, are too few to judge by: see
docs/statistics.md."""

_HALVINGS = 40


def difference_interval(differences: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval:
    """Interval for the mean of one or more differences between -1 and 1.

    Args:
        clusters: the cluster of each difference; None if they are independent.
    """
    found = spread(clustered(differences, clusters))
    gain = math.fsum(each for each in differences if each > 0) / found.prompts
    loss = gain - found.mean
    number = found.effective_prompts(gain + loss - found.mean**2, whole=set(differences) <= {-1, 0, 1})
    method = "Tango" if number == found.prompts else "Tango, effective number of prompts"
    # The other bound is the lower one of the opposite differences.
    return Interval(-_upper(loss, gain, number), _upper(gain, loss, number), method)


def _upper(gain: float, loss: float, number: float) -> float:
    """The largest difference that `number` prompts do not exclude."""
    low, high = gain - loss, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        error = NORMAL_QUANTILE * _deviation(middle, gain, loss)
        low, high = (middle, high) if (middle - gain + loss) * math.sqrt(number) <= error else (low, middle)
    return low


def _deviation(difference: float, gain: float, loss: float) -> float:
    """Standard deviation of one pair's difference, if its mean were `difference`.

    √(2q + δ(1 - δ)), where q is the most likely share of losses under this mean: the positive root of
    2q² + (δ(2 - gain + loss) - gain - loss)q - loss·δ(1 - δ).
    """
    linear = difference * (2 - gain + loss) - gain - loss
    root = math.sqrt(max(0.0, linear**2 + 8 * loss * difference * (1 - difference)))
    return math.sqrt(max(0.0, (root - linear) / 2 + difference * (1 - difference)))
