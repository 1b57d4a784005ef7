"""95 % confidence interval of a mean of values that have no bounds, such as losses."""

import math
from collections.abc import Hashable, Sequence

from posttrain.base.intervals.spread import Interval, clustered, spread
from posttrain.base.intervals.student import t_quantile


def student_interval(values: Sequence[float], clusters: Sequence[Hashable] | None = None) -> Interval | None:
    """mean ± t·√variance, with the variance between clusters and its degrees of freedom.

    None for a single value or cluster, which says nothing about the variance. Values that are all alike give an
    interval of width 0: without bounds there is no telling how different others might be.

    Args:
        clusters: the cluster of each value; None if they are independent.
    """
    found = spread(clustered(values, clusters))
    if found.clusters == 1:
        return None
    half = t_quantile(found.freedom) * math.sqrt(found.variance)
    return Interval(found.mean - half, found.mean + half, "Student's t")
