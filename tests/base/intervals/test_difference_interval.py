"""The interval of a mean paired difference: published examples, and its coverage beyond the grid of the benchmark."""

import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.base.intervals.paired import difference_interval
from posttrain.base.intervals.student import t_quantile


def changes(prompts: int, up: int, down: int) -> list[float]:
    return [1.0] * up + [-1.0] * down + [0.0] * (prompts - up - down)


def test_the_interval_is_the_published_one() -> None:
    # Airway reactivity, 1 against 7 of 21 pairs: -0.517 to -0.026 (Fagerland, Lydersen and Laake, Statistics in
    # Medicine 33, 2014). The other is the real root of the quartic equation to which Tango's method comes down.
    low, high, method = difference_interval(changes(21, 1, 7))
    assert (round(low, 3), round(high, 3), method) == (-0.517, -0.026, "Tango")
    assert difference_interval(changes(44, 9, 1))[:2] == pytest.approx((0.050333, 0.328341), abs=1e-6)


def test_prompts_that_are_all_unchanged_are_no_certainty() -> None:
    # Without changes, δ is not excluded while δ·√N ≤ 1.96·√(δ(1 - δ)), that is up to 3.8415/(N + 3.8415).
    assert difference_interval([0.0] * 20)[:2] == pytest.approx((-0.16113, 0.16113), abs=1e-5)


@pytest.mark.parametrize("size", [0.25, 0.5, -0.5])
def test_differences_that_are_all_alike_are_no_certainty(size: float) -> None:
    low, high, method = difference_interval([size] * 30)
    assert low < size - 0.02 and high > size + 0.02
    assert "effective" in method


def test_one_difference_says_next_to_nothing_and_no_interval_goes_beyond_what_can_be() -> None:
    assert difference_interval([0.5])[:2] == pytest.approx((-1, 1))
    low, high, _ = difference_interval([1.0])
    assert (low < -0.5, high) == (True, pytest.approx(1))
    assert difference_interval([1.0] * 4)[1] == pytest.approx(1)


def test_prompts_of_one_cluster_say_less() -> None:
    alone = difference_interval(changes(100, 15, 5))
    pairs = difference_interval(
        [each for each in changes(50, 8, 2) for _ in "ab"], [place // 2 for place in range(100)]
    )
    fifty = difference_interval(changes(50, 8, 2))
    assert pairs.high - pairs.low > 1.3 * (alone.high - alone.low)
    assert pairs[:2] == pytest.approx(fifty[:2], abs=0.05)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=40))
def test_the_interval_holds_the_mean_and_mirrors_with_the_signs(differences: list[float]) -> None:
    low, high, method = difference_interval(differences)
    assert -1 - 1e-9 <= low <= statistics.fmean(differences) + 1e-9
    assert statistics.fmean(differences) - 1e-9 <= high <= 1 + 1e-9
    assert high - low > 0.01
    other = difference_interval([-each for each in differences])
    assert other == (pytest.approx(-high, abs=1e-9), pytest.approx(-low, abs=1e-9), method)


def of_four_samples(chance: random.Random) -> float:
    """The change in the mean of four answers to a problem of random difficulty, each solved a tenth more often."""
    before = chance.betavariate(0.5, 0.5)
    after = min(1.0, before + 0.1)
    return sum((chance.random() < after) - (chance.random() < before) for _ in range(4)) / 4


def by_a_little(chance: random.Random) -> float:
    """Rarely a change by a quarter of the reward, otherwise none."""
    draw = chance.random()
    return 0.25 * ((draw < 0.05) - (draw > 0.98))


# "mean of four": a tenth, or less for problems that were nearly always solved, integrated over the difficulties.
CASES = {
    "mean of four": (of_four_samples, 0.08644),
    "a little, seldom": (by_a_little, 0.25 * 0.03),
    "any size": (lambda chance: chance.gauss(0.05, 0.2), 0.05),
}


@pytest.mark.parametrize("count", [4, 10, 30])
@pytest.mark.parametrize(("draw", "mean"), CASES.values(), ids=CASES)
def test_an_interval_holds_the_true_mean_in_95_of_100_cases_at_any_number_of_prompts(
    draw: Callable[[random.Random], float], mean: float, count: int
) -> None:
    chance, held, times = random.Random(0), 0, 500
    for _ in range(times):
        low, high, _ = difference_interval([draw(chance) for _ in range(count)])
        held += low <= mean <= high
    # 0.95 minus three standard deviations for 500 draws, which are 0.029.
    assert held / times > 0.921


def test_with_a_hundred_prompts_the_interval_is_hardly_wider_than_the_usual_one() -> None:
    chance = random.Random(1)
    values = [chance.gauss(0.05, 0.2) for _ in range(100)]
    low, high, _ = difference_interval(values)
    usual = 2 * t_quantile(99) * statistics.stdev(values) / 10
    assert 0.98 * usual < high - low < 1.1 * usual
