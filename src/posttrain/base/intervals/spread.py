"""How certain the mean of prompts' values is: its variance, also where prompts come in clusters.

Prompts of one cluster, such as questions about the same text, are right or wrong together, so they say less than as
many prompts on their own. Only whole clusters are taken as independent.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posttrain.base.intervals.student import t_quantile

_ROUNDING = 1e-24
"""Squares that add up to less than this share of the values' squares are rounding errors of values that are alike."""


class Interval(NamedTuple):
    """A 95 % interval, and the name of the method that gave it."""

    low: float
    high: float
    method: str


class Cluster(NamedTuple):
    """The number of a cluster's prompts, and the sum of their values."""

    prompts: int
    total: float


def clustered(values: Sequence[float], clusters: Sequence[Hashable] | None) -> list[Cluster]:
    """The clusters in the order of their first prompts; each prompt is a cluster of its own if there are none."""
    if clusters is None:
        return [Cluster(1, value) for value in values]
    found: dict[Hashable, list[float]] = {}
    for name, value in zip(clusters, values, strict=True):
        found.setdefault(name, []).append(value)
    return [Cluster(len(each), math.fsum(each)) for each in found.values()]


@dataclass(frozen=True)
class Spread:
    """A mean over prompts, and what is known about its error.

    Attributes:
        equal_clusters: the number of clusters of equal size that would say as much (Kish 1965): N² / Σ nₖ².
        variance: of the mean; infinite for a single cluster.
        freedom: the degrees of freedom of this variance.
    """

    prompts: int
    clusters: int
    equal_clusters: float
    mean: float
    variance: float
    freedom: int

    def effective_prompts(self, single: float, *, whole: bool) -> float:
        """How many independent prompts would give a mean that is as certain as this one.

        N / d · (t_{N-1} / t_f)² with the design effect d and f degrees of freedom (Korn and Graubard, Survey
        Methodology 24, 1998). d is the variance over that of a mean of N independent values, single / (N - 1). It is
        averaged with half a cluster whose d is 1, so that values which happen to be alike are no certainty.

        Args:
            single: the variance that one value has if it can only be 0 or 1 (or -1, 0 or 1, for a difference).
            whole: whether the values are such numbers. Without clusters, there is nothing to estimate then: d = 1.
        """
        if whole and self.clusters == self.prompts:
            return self.prompts
        if single <= 0:
            return self.equal_clusters
        design = self.variance * (self.prompts - 1) / single if self.clusters > 1 else math.inf
        smooth = (self.equal_clusters * design + 0.5) / (self.equal_clusters + 0.5)
        return self.prompts / smooth * (t_quantile(max(1, self.prompts - 1)) / t_quantile(self.freedom)) ** 2


def spread(clusters: Iterable[Cluster]) -> Spread:
    """The mean over the prompts of one or more clusters, with its cluster-robust variance.

    With eₖ the sum of cluster k's deviations from the mean and nₖ its prompts, the variance is
    Σ eₖ² / (1 - nₖ/N) / N² (CR2 of Bell and McCaffrey, Survey Methodology 28, 2002), which for clusters of one prompt
    is the usual s²/N. Its degrees of freedom are those of Satterthwaite (Biometrics Bulletin 2, 1946),
    (Σ σₖ²)² / Σ σₖ⁴ with eₖ² for σₖ² and eₖ⁴/3 for σₖ⁴, at most as many as there are equal clusters, less one: few if
    the variance comes from few clusters.
    """
    found = list(clusters)
    prompts = sum(each.prompts for each in found)
    equal = prompts**2 / sum(each.prompts**2 for each in found)
    mean = math.fsum(each.total for each in found) / prompts
    squares = [(each.total - each.prompts * mean) ** 2 for each in found]
    total = math.fsum(squares)
    alike = total <= _ROUNDING * math.fsum(each.total**2 for each in found)
    # As shares of the largest, since the square of a tiny square is 0.
    shares = [] if alike else [each / max(squares) for each in squares]
    carriers = math.fsum(shares) ** 2 / math.fsum(each**2 for each in shares) if shares else 1.0
    return Spread(
        prompts=prompts,
        clusters=len(found),
        equal_clusters=equal,
        mean=mean,
        variance=math.inf if len(found) == 1 else 0.0 if alike else _variance(found, squares, prompts),
        freedom=max(1, int(min(equal, 3 * carriers) - 1)),
    )


def _variance(clusters: Sequence[Cluster], squares: Sequence[float], prompts: int) -> float:
    return (
        math.fsum(square / (1 - each.prompts / prompts) for square, each in zip(squares, clusters, strict=True))
        / prompts**2
    )
