"""The sign-flip test, against a count of all signs, McNemar's exact test and reference numbers."""

import math
import random
from itertools import product
from operator import mul
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluate.statistics.flips import flip_test

MANY = [random.Random(place).gauss(0.25, 1) for place in range(60)]


@pytest.mark.parametrize(
    ("differences", "p"),
    # scipy 1.17, permutation_test(permutation_type="samples", n_resamples=inf)
    [
        ([0.3, -0.1, 0.7, 0.2, -0.4, 0.9, 0.1, 0.6], 0.125),
        ([0.5, -0.5, 1.0, 1.0, 0.5, 0.0, -1.0, 0.5, 0.5, 1.0], 0.1953125),
    ],
)
def test_all_signs_are_counted(differences: list[float], p: float) -> None:
    assert flip_test(differences) == (pytest.approx(p), "exact sign flips")


def test_three_differences_worked_by_hand() -> None:
    # 1, ½ and -½ add up to 1. Of the eight choices of signs two give ±2, four give ±1 and two give 0.
    assert flip_test([1.0, 0.5, -0.5]).p == pytest.approx(6 / 8)


@given(st.lists(st.sampled_from([-1.0, -2 / 3, -0.5, -1 / 3, 0.0, 1 / 3, 0.5, 1.0]), max_size=9))
def test_the_p_value_is_the_share_of_signs_that_are_as_far_from_0(differences: list[float]) -> None:
    signs = product((-1, 1), repeat=len(differences))
    sums = [abs(math.fsum(map(mul, differences, each))) for each in signs]
    share = sum(each >= abs(math.fsum(differences)) - 1e-9 for each in sums) / len(sums)
    assert flip_test(differences).p == pytest.approx(share)


@pytest.mark.parametrize(
    ("up", "down", "p"),
    # 2·(C(20, 0) + … + C(20, 5))/2²⁰ and so on; statsmodels 0.15, mcnemar(exact=True)
    [(15, 5, 0.0413895), (4, 0, 2 / 16), (17, 1, 2 * (1 + 18) / 2**18), (3, 3, 1.0)],
)
def test_changes_by_1_have_the_p_value_of_mcnemars_exact_test(up: int, down: int, p: float) -> None:
    assert flip_test([1.0] * up + [-1.0] * down + [0.0] * 80).p == pytest.approx(p, rel=1e-5)


def test_equal_models_are_not_told_apart() -> None:
    assert flip_test([]).p == flip_test([0.0] * 9).p == 1


def test_many_different_sizes_get_random_signs_which_the_seed_decides() -> None:
    found = flip_test(MANY)
    assert found.method == "10,000 random sign flips"
    assert found == flip_test(MANY) != flip_test(MANY, seed=1)
    # The sum of 60 differences with random signs is nearly normal.
    normal = 2 * NormalDist().cdf(-abs(math.fsum(MANY)) / math.hypot(*MANY))
    assert found.p == pytest.approx(normal, abs=0.012)
    # No p-value is 0: what was seen is one of the choices of signs.
    assert flip_test([1 + 1 / (2 + place) for place in range(60)]).p == pytest.approx(1 / 10_001)


def test_many_differences_of_few_sizes_are_counted() -> None:
    halves = [0.5] * 90 + [-0.5] * 60 + [1.0] * 40 + [-1.0] * 45
    # The sum is 10. All sums are whole, so half of 1 is taken off for the normal approximation.
    normal = 2 * NormalDist().cdf(-(10 - 0.5) / math.hypot(*halves))
    assert flip_test(halves) == (pytest.approx(normal, abs=0.005), "exact sign flips")
