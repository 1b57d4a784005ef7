"""A mean with everything that has to be printed beside it."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from posttrain.base.intervals.spread import Interval
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.statistics.unbounded import student_interval
from posttrain.evaluate.statistics.wilson import share_interval

Clusters = Mapping[str, Hashable]
"""The cluster of each prompt, by the prompt's name."""


@dataclass(frozen=True)
class Estimate:
    """A mean over prompts, or a mean difference, with its 95 % interval.

    Attributes:
        prompts: how many prompts it is a mean of.
        clusters: how many clusters they are in; None if they are independent.
        value: None if there is no prompt.
        low, high: None if the prompts say nothing about them.
        method: how the interval was computed.
        ungraded: answers without a grade; for a difference, prompts that lack a grade on either side.
    """

    prompts: int
    clusters: int | None
    value: float | None
    low: float | None
    high: float | None
    method: str
    ungraded: int


def estimate(scores: Scores, clusters: Clusters | None = None) -> Estimate:
    """The mean over a model's graded prompts."""
    graded = {name: value for name, value in scores.values.items() if value is not None}
    values, groups = list(graded.values()), clusters_of(graded, clusters)
    interval = None
    if values:
        interval = share_interval(values, groups) if scores.scale == "reward" else student_interval(values, groups)
    return estimate_of(values, groups, interval, scores.ungraded)


def estimate_of(
    values: Sequence[float], clusters: Sequence[Hashable] | None, interval: Interval | None, ungraded: int
) -> Estimate:
    """The mean of `values`, whose interval is known."""
    return Estimate(
        prompts=len(values),
        clusters=None if clusters is None else len(set(clusters)),
        value=fmean(values) if values else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        method=interval.method if interval else "none",
        ungraded=ungraded,
    )


def clusters_of(prompts: Mapping[str, object], clusters: Clusters | None) -> list[Hashable] | None:
    """The cluster of each of the prompts, in their order.

    Raises:
        ValueError: a prompt has no cluster.
    """
    if clusters is None:
        return None
    if missing := [name for name in prompts if name not in clusters]:
        raise ValueError(f"prompt {missing[0]} has no cluster")
    return [clusters[name] for name in prompts]
