"""The variance of a mean, its degrees of freedom, and the number of prompts that would be as certain."""

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.base.intervals.spread import Cluster, clustered, spread
from posttrain.base.intervals.student import t_quantile


def test_without_clusters_the_variance_is_the_usual_one() -> None:
    # Mean 1/4; squared deviations 9/16 and three times 1/16: s² = (12/16)/3 = 1/4, and 1/4 of that is the mean's.
    # Satterthwaite: (12/16)² / (81/256 + 3/256) · 3 = 144/84 · 3 = 5.1, but no more than 4 prompts; less one.
    found = spread(clustered([1.0, 0.0, 0.0, 0.0], None))
    assert (found.prompts, found.clusters, found.equal_clusters) == (4, 4, 4)
    assert (found.mean, found.variance, found.freedom) == (0.25, pytest.approx(1 / 16), 3)


def test_clusters_of_unequal_size() -> None:
    # Values 1, 0 in one cluster, 1 in another, 0 in the third: mean 1/2, and deviations add up to 0, 1/2 and -1/2.
    # Variance (0 + (1/4)/(3/4) + (1/4)/(3/4)) / 4² = 1/24. They say as much as 4²/(2² + 1 + 1) = 2.67 equal clusters.
    found = spread(clustered([1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "c"]))
    assert found == spread([Cluster(2, 1.0), Cluster(1, 1.0), Cluster(1, 0.0)])
    assert (found.prompts, found.clusters, found.freedom) == (4, 3, 1)
    assert (found.mean, found.variance, found.equal_clusters) == pytest.approx((1 / 2, 1 / 24, 8 / 3))


def test_a_variance_from_few_values_has_few_degrees_of_freedom() -> None:
    # One right answer of 100: its deviation, 0.99, gives nearly all of the sum, so 3 · 1.02 - 1 are left.
    assert spread(clustered([1.0] + [0.0] * 99, None)).freedom == 2
    assert spread(clustered([1.0, 0.0] * 50, None)).freedom == 99


def test_values_of_0_and_1_on_their_own_are_as_many_as_they_are() -> None:
    found = spread(clustered([1.0] + [0.0] * 9, None))
    assert found.effective_prompts(0.09, whole=True) == 10


def test_values_that_vary_less_count_as_more_prompts() -> None:
    # Ten rewards of ½ and ten of 1: variance 1/16 where 0 and 1 with this mean would have 3/16, so d = 1/3; with half
    # a prompt of d = 1 it is (20/3 + 1/2) / 20.5 = 0.3496, and 20/0.3496 = 57.2. All 20 carry the variance: f = 19.
    found = spread(clustered([0.5] * 10 + [1.0] * 10, None))
    assert found.freedom == 19
    assert found.effective_prompts(3 / 16, whole=False) == pytest.approx(20 / ((20 / 3 + 0.5) / 20.5))


def test_prompts_in_clusters_count_as_fewer() -> None:
    # Twenty pairs, ten right and ten wrong: deviations ±1, variance 20/(1 - 1/20)/40² = 1/76 and d = (1/76)·39/(1/4) =
    # 156/76. With half a pair of d = 1 that is 2.027; and t for 39 and for 19 degrees of freedom are 2.0227 and 2.0930.
    found = spread(clustered([1.0, 1.0] * 10 + [0.0, 0.0] * 10, [place // 2 for place in range(40)]))
    assert found.effective_prompts(0.25, whole=True) == pytest.approx(40 / 2.02696 * (2.02269 / 2.09302) ** 2, rel=1e-4)


def test_values_at_a_bound_count_as_their_clusters_and_a_single_cluster_as_nothing() -> None:
    assert spread(clustered([1.0] * 6, "aabbcc")).effective_prompts(0, whole=True) == 3
    assert spread(clustered([1.0, 0.0, 1.0], "aaa")).effective_prompts(2 / 9, whole=True) == 0


def test_values_that_are_all_alike_are_no_certainty() -> None:
    # d = 0 is averaged with half a prompt: (0 + 1/2) / 20.5, and there are 2 degrees of freedom instead of 19.
    found = spread(clustered([1 / 3] * 20, None))
    assert (found.variance, found.freedom) == (0, 2)
    assert found.effective_prompts(2 / 9, whole=False) == pytest.approx(20 * 41 * (t_quantile(19) / t_quantile(2)) ** 2)


@given(st.lists(st.tuples(st.floats(-9, 9), st.integers(0, 4)), min_size=2, max_size=30), st.randoms())
def test_the_order_of_the_prompts_does_not_matter(pairs: list[tuple[float, int]], chance: Random) -> None:
    def of(rows: list[tuple[float, int]]) -> tuple[float, ...]:
        found = spread(clustered([value for value, _ in rows], [cluster for _, cluster in rows]))
        return (found.prompts, found.clusters, found.mean, found.variance)

    before = of(pairs)
    chance.shuffle(pairs)
    assert of(pairs) == pytest.approx(before, rel=1e-6, abs=1e-12)


@given(st.lists(st.floats(-9, 9), min_size=2, max_size=30))
def test_clusters_of_one_prompt_are_no_clusters(values: list[float]) -> None:
    alone, each = spread(clustered(values, None)), spread(clustered(values, range(len(values))))
    assert alone == each
    assert math.isfinite(alone.variance)
