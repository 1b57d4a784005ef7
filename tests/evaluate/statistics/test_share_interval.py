"""Wilson's interval, against reference numbers, and for values other than 0 and 1."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluate.statistics.wilson import share_interval, wilson


@pytest.mark.parametrize(
    ("right", "prompts", "low", "high"),
    # statsmodels 0.15, proportion_confint(method="wilson")
    [(18, 20, 0.698966, 0.972134), (0, 20, 0.0, 0.161125), (1, 10, 0.017876, 0.404150), (50, 100, 0.403832, 0.596168)],
)
def test_right_and_wrong_answers_have_wilsons_interval(right: int, prompts: int, low: float, high: float) -> None:
    found = share_interval([1.0] * right + [0.0] * (prompts - right))
    assert found == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6), "Wilson")


def test_the_formula_worked_by_hand() -> None:
    # 20 of 20: the middle is (20 + 1.92073)/23.84146, and half the width 1.95996·√(0 + 0.96036)/23.84146.
    assert wilson(1.0, 20) == pytest.approx((0.91944 - 0.08056, 1.0), abs=1e-4)


def test_rewards_that_vary_less_have_a_narrower_interval() -> None:
    # As certain as 57.2 values of 0 and 1 (base/intervals/test_spread.py).
    low, high, method = share_interval([0.5] * 10 + [1.0] * 10)
    assert (low, high) == pytest.approx(wilson(0.75, 57.2093), abs=1e-6)
    assert "effective" in method


def test_pairs_of_prompts_that_are_right_together_have_a_wider_interval() -> None:
    # As certain as 18.4 prompts (base/intervals/test_spread.py).
    values, clusters = [1.0, 1.0] * 10 + [0.0, 0.0] * 10, [place // 2 for place in range(40)]
    assert share_interval(values, clusters)[:2] == pytest.approx(wilson(0.5, 18.43), abs=1e-4)


def test_a_single_cluster_says_nothing() -> None:
    assert share_interval([1.0, 0.0, 1.0], "aaa")[:2] == (0, 1)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1 / 3]), st.integers(0, 5)), min_size=1, max_size=40),
    st.booleans(),
)
def test_the_interval_holds_the_mean_and_has_a_width(pairs: list[tuple[float, int]], grouped: bool) -> None:
    values = [value for value, _ in pairs]
    low, high, _ = share_interval(values, [cluster for _, cluster in pairs] if grouped else None)
    assert 0 <= low <= sum(values) / len(values) + 1e-9
    assert sum(values) / len(values) - 1e-9 <= high <= 1
    assert high - low > 0.01
