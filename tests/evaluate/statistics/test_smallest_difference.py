"""The smallest difference that could have been told, worked by hand."""

import math

import pytest

from posttrain.base.intervals.spread import Cluster, clustered
from posttrain.evaluate.statistics.smallest import smallest_difference


def changes(prompts: int, up: int, down: int) -> list[Cluster]:
    return clustered([1.0] * up + [-1.0] * down + [0.0] * (prompts - up - down), None)


def test_it_follows_from_the_spread() -> None:
    # 20 of 100 changed by 1: √20/100 = 0.04472; t for 99 degrees of freedom is 1.98422 for 95 % and 0.84527 for 60 %,
    # beyond which lie 20 % on one side.
    assert smallest_difference(changes(100, 12, 8), 1, 1.0) == pytest.approx(2.82949 * 0.0447214, rel=1e-5)


def test_more_models_need_a_larger_one() -> None:
    # 95 % becomes 98.75 % for four models; t is 2.54422.
    found = smallest_difference(changes(100, 12, 8), 4, 1.0)
    assert found == pytest.approx((2.54422 + 0.84527) * 0.0447214, rel=1e-4)


def test_with_few_changes_it_is_what_an_exact_test_needs() -> None:
    # McNemar's test needs 6 changes in one direction: 2/2⁶ < 5 % < 2/2⁵. Six or more of 400 are seen in 80 % of cases
    # if each prompt changes with the probability q below; a binomial sum.
    q = smallest_difference(changes(400, 0, 0), 1, 1.0)
    assert q is not None
    assert sum(math.comb(400, few) * q**few * (1 - q) ** (400 - few) for few in range(6)) == pytest.approx(0.2)
    assert smallest_difference(changes(400, 1, 2), 1, 1.0) == pytest.approx(q)
    # If changes are by ½, so is the difference that they make.
    assert smallest_difference(clustered([0.5] * 2 + [0.0] * 398, None), 1, 1.0) == pytest.approx(q / 2)


def test_of_clusters_as_many_must_change() -> None:
    alone = smallest_difference(changes(40, 0, 0), 1, 1.0)
    assert smallest_difference([Cluster(10, 0.0)] * 40, 1, 1.0) == pytest.approx(alone)
    # Ten of 40 clusters changed by 5 answers of 10: √(10·25)/400 = 0.03953, but t has 39 degrees of freedom.
    found = smallest_difference([Cluster(10, 5.0)] * 5 + [Cluster(10, -5.0)] * 5 + [Cluster(10, 0.0)] * 30, 1, 1.0)
    assert found == pytest.approx((2.02269 + 0.85070) * 0.0395285, rel=1e-4)


def test_losses_that_are_all_equal_give_no_size() -> None:
    assert smallest_difference(changes(40, 0, 0), 1, None) is None
    assert smallest_difference(clustered([0.25] * 40, None), 1, None) is not None
