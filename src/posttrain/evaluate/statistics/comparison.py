"""Models compared with a baseline over the same prompts."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from statistics import fmean

from posttrain.base.intervals.paired import difference_interval
from posttrain.base.intervals.spread import Cluster, clustered, spread
from posttrain.evaluate.statistics.estimate import Clusters, Estimate, clusters_of, estimate_of
from posttrain.evaluate.statistics.flips import EXACT, PValue, flip_test
from posttrain.evaluate.statistics.holm import holm
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.statistics.smallest import smallest_difference
from posttrain.evaluate.statistics.unbounded import student_interval
from posttrain.evaluate.statistics.verdict import Verdict, verdict


@dataclass(frozen=True)
class Comparison:
    """A model against the baseline.

    Attributes:
        difference: the mean of the model's values minus the baseline's, prompt by prompt.
        test: how the p-value was computed.
        p: of the model alone.
        adjusted_p: of one of several models (Holm).
        smallest: the smallest difference that would have been told in 80 % of cases; None if nothing is known of it.
    """

    difference: Estimate
    test: str
    p: float
    adjusted_p: float
    smallest: float | None
    verdict: Verdict


def compare(models: Mapping[str, Scores], baseline: Scores, clusters: Clusters | None = None) -> dict[str, Comparison]:
    """Each model against the baseline, over the prompts that are graded on both sides.

    Raises:
        ValueError: two sides have different prompts or scales.
    """
    pairs = {name: _pairs(name, scores, baseline, clusters) for name, scores in models.items()}
    tests = {name: _test(each) for name, each in pairs.items()}
    adjusted = holm({name: test.p for name, test in tests.items()})
    return {name: _comparison(each, tests[name], adjusted[name], len(models)) for name, each in pairs.items()}


@dataclass(frozen=True)
class _Pairs:
    """The differences of the prompts that are graded on both sides."""

    differences: list[float]
    groups: list[Hashable] | None
    left_out: int
    loss: bool

    @property
    def clusters(self) -> list[Cluster]:
        return clustered(self.differences, self.groups)


def _pairs(name: str, scores: Scores, baseline: Scores, clusters: Clusters | None) -> _Pairs:
    if scores.values.keys() != baseline.values.keys() or scores.scale != baseline.scale:
        raise ValueError(f"{name} and the baseline have different prompts or scales, so they cannot be compared")
    differences = {
        prompt: value - other
        for prompt, value in scores.values.items()
        if value is not None and (other := baseline.values[prompt]) is not None
    }
    left_out = len(scores.values) - len(differences)
    return _Pairs(list(differences.values()), clusters_of(differences, clusters), left_out, scores.scale == "loss")


def _test(pairs: _Pairs) -> PValue:
    found = flip_test([each.total for each in pairs.clusters])
    alike = pairs.groups is None and set(pairs.differences) <= {-1, 0, 1}
    return PValue(found.p, "exact McNemar") if alike and found.method == EXACT else found


def _comparison(pairs: _Pairs, test: PValue, adjusted: float, models: int) -> Comparison:
    values, groups = pairs.differences, pairs.groups
    if not values:
        return Comparison(estimate_of([], groups, None, pairs.left_out), test.method, 1.0, 1.0, None, "too few prompts")
    interval = student_interval(values, groups) if pairs.loss else difference_interval(values, groups)
    rise = -fmean(values) if pairs.loss else fmean(values)
    return Comparison(
        difference=estimate_of(values, groups, interval, pairs.left_out),
        test=test.method,
        p=test.p,
        adjusted_p=adjusted,
        smallest=smallest_difference(pairs.clusters, models, None if pairs.loss else 1.0),
        verdict=verdict(rise, adjusted, spread(pairs.clusters).equal_clusters),
    )
