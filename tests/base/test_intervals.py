"""Confidence intervals for a mean of differences between -1 and 1: their width and their coverage."""

import math
import random
import statistics
from collections.abc import Callable

import pytest

from posttrain.base.intervals import mean_interval, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_the_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_two_differences_are_added_half_up_and_half_down_by_the_largest_one() -> None:
    # 1/2, -1/2, 1/2 and two more whose sum is 0 and whose squares add up to 1/4: the mean of the five is 1/10, the
    # variance is (3/4 + 1/4)/5 - 1/100 = 0.19, and t with 4 degrees of freedom is 2.776.
    half = 2.7764 * math.sqrt(0.19 / 5)
    assert mean_interval([0.5, -0.5, 0.5]) == pytest.approx((0.1 - half, 0.1 + half), abs=1e-4)


def test_differences_that_are_all_alike_are_no_certainty() -> None:
    # 30 zeros and two more whose squares add up to 1: the variance of the 32 is 1/32, and t with 31 degrees of
    # freedom is 2.0395.
    half = 2.0395 * math.sqrt(1 / 32 / 32)
    assert mean_interval([0.0] * 30) == pytest.approx((-half, half), abs=1e-4)
    low, high = mean_interval([0.25] * 30)
    assert low < 0.25 - 0.01 and high > 0.25


def test_one_difference_says_next_to_nothing_and_no_interval_goes_beyond_what_can_be() -> None:
    assert mean_interval([1.0]) == (-1.0, 1.0)
    low, high = mean_interval([1.0] * 4)
    assert 0 < low < 0.6
    assert high == 1.0


def solved(up: float, down: float) -> Callable[[random.Random], float]:
    """A problem that becomes solved or unsolved with these probabilities."""
    return lambda chance: float(((draw := chance.random()) < up) - (draw > 1 - down))


def of_four_samples(chance: random.Random) -> float:
    """The change in the mean of four answers to a problem of random difficulty, each solved a tenth more often."""
    before = chance.betavariate(0.5, 0.5)
    after = min(1.0, before + 0.1)
    return sum((chance.random() < after) - (chance.random() < before) for _ in range(4)) / 4


def by_a_little(chance: random.Random) -> float:
    """Rarely a change by a quarter of the reward, otherwise none."""
    return 0.25 * solved(0.05, 0.02)(chance)


# "mean of four": a tenth, or less for problems that were nearly always solved, integrated over the difficulties.
CASES = {
    "solved, seldom": (solved(0.05, 0.02), 0.03),
    "solved, often": (solved(0.3, 0.1), 0.2),
    "solved, nearly always": (solved(0.8, 0.02), 0.78),
    "mean of four": (of_four_samples, 0.08644),
    "a little, seldom": (by_a_little, 0.25 * 0.03),
    "any size": (lambda chance: chance.gauss(0.05, 0.2), 0.05),
}


@pytest.mark.parametrize("count", [4, 10, 30, 100])
@pytest.mark.parametrize(("draw", "mean"), CASES.values(), ids=CASES)
def test_an_interval_holds_the_true_mean_in_95_of_100_cases_at_any_number_of_prompts(
    draw: Callable[[random.Random], float], mean: float, count: int
) -> None:
    chance, held, times = random.Random(0), 0, 2000
    for _ in range(times):
        low, high = mean_interval([draw(chance) for _ in range(count)])
        held += low <= mean <= high
    # 0.95 minus three standard deviations for 2,000 draws, which are 0.015.
    assert held / times > 0.935


def test_with_a_hundred_prompts_the_interval_is_hardly_wider_than_the_usual_one() -> None:
    chance = random.Random(1)
    values = [chance.gauss(0.05, 0.2) for _ in range(100)]
    low, high = mean_interval(values)
    usual = 2 * t_quantile(99) * statistics.stdev(values) / 10
    assert usual < high - low < 1.1 * usual
