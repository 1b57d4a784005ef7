"""A number that changes over the run, and its exact sum."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.schedule import Schedule

SHARES = st.integers(0, 100).map(lambda hundredths: hundredths / 100)
POINTS = st.dictionaries(st.integers(0, 60), SHARES, min_size=1, max_size=4)


@pytest.mark.parametrize(
    ("iteration", "share"),
    [(0, Fraction(1, 5)), (10, Fraction(1, 5)), (15, Fraction(3, 10)), (20, Fraction(2, 5)), (25, Fraction(1, 5)),
     (30, 0), (10**9, 0)],
)  # fmt: skip
def test_a_share_is_linear_between_the_points_and_constant_outside(iteration: int, share: Fraction) -> None:
    assert Schedule({20: 0.4, 10: 0.2, 30: 0.0}).at(iteration) == share


@settings(deadline=None)
@given(POINTS, st.integers(0, 80), st.integers(1, 7))
def test_the_total_is_the_sum_of_the_shares(points: dict[int, float], draws: int, stride: int) -> None:
    share = Schedule(points)
    assert share.total(draws, stride) == sum(share.at(stride * draw) for draw in range(draws))
