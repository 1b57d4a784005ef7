"""Quantiles of Student's t distribution, compared with published tables."""

import pytest

from posttrain.base.intervals.student import half_width, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (10, 2.228), (30, 2.042), (120, 1.980)],
)
def test_the_quantiles_for_95_percent_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize(
    ("freedom", "covered", "quantile"), [(19, 0.6, 0.86095), (19, 0.9875, 2.75859), (1, 0.9975, 254.6466)]
)
def test_other_shares_have_quantiles_too(freedom: int, covered: float, quantile: float) -> None:
    assert t_quantile(freedom, covered) == pytest.approx(quantile, rel=1e-5)


def test_a_thousand_degrees_of_freedom_are_as_good_as_more() -> None:
    assert t_quantile(1_000_000) == t_quantile(1000) == pytest.approx(1.96234, abs=1e-5)


def test_the_interval_of_a_mean_is_the_quantile_times_the_deviation_over_the_root_of_the_number() -> None:
    # 0.25 and 0: t(1) = 12.706 times the deviation 0.17678 over √2.
    assert half_width([0.25, 0.0]) == pytest.approx(12.706 * 0.125, rel=1e-4)
    assert half_width([0.5]) is None
