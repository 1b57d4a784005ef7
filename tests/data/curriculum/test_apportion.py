"""Converting weights to integer shares: exactly if possible, else by largest remainders, else refused."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.curriculum.period import MAX_PERIOD, integer_shares
from posttrain.errors import ConfigError


@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ({"chat": 0.7, "code": 0.3}, {"chat": 7, "code": 3}),
        ({"chat": 2, "code": 2}, {"chat": 1, "code": 1}),
        ({"chat": 50, "code": 30, "maths": 20}, {"chat": 5, "code": 3, "maths": 2}),
        # 0.125 = 125/1000 and 0.3 = 300/1000; 125 : 300 = 5 : 12.
        ({"chat": 0.125, "code": 0.3}, {"chat": 5, "code": 12}),
        ({"chat": 1e-5, "code": 3e-5}, {"chat": 1, "code": 3}),
        ({"chat": 123.456}, {"chat": 1}),
    ],
)
def test_decimal_weights_are_kept_exactly(weights, shares):
    assert integer_shares(weights) == shares


def test_a_weight_of_zero_leaves_the_data_set_out():
    assert integer_shares({"chat": 1.0, "code": 0.0, "maths": 1.0}) == {"chat": 1, "maths": 1}


def test_what_has_no_short_period_goes_by_largest_remainder():
    # Thirds with one digit too many for an exact period: 21845.33 of 65536 slots each. The floors add up to 65535,
    # and the remaining slot goes to the largest remainder.
    weights = {"a": 0.3333333, "b": 0.3333333, "c": 0.3333334}
    assert integer_shares(weights) == {"a": 21845, "b": 21845, "c": 21846}


def test_equal_remainders_go_by_name_whatever_the_order_of_the_weights():
    weights = {"b": 0.4999900, "a": 0.4999900, "c": 2.0e-5}
    # Exact slots of 65536: 32767.34, 32767.34 and 1.31. The floors leave one slot; a and b have equal remainders.
    assert integer_shares(weights) == {"a": 32768, "b": 32767, "c": 1}


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"chat": 1.0, "code": -0.5}, "'code'.*-0.5"),
        ({"chat": math.nan, "code": 1.0}, "'chat'.*nan"),
        ({"chat": 1.0, "code": math.inf}, "'code'.*inf"),
        ({"chat": 0.0, "code": 0.0}, "positive weight: chat, code"),
        ({}, "none is named"),
        ({"chat": 1.0, "code": 1e-9}, "'code'.*less than one row in 65536"),
        ({"chat": 1e308, "code": 5e-324}, "'code'.*less than one row"),
    ],
)
def test_weights_that_mean_nothing_are_refused_by_name(weights, message):
    with pytest.raises(ConfigError, match=message):
        integer_shares(weights)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.integers(1, 4000).map(lambda n: n / 1000), min_size=1, max_size=12))
def test_shares_are_exact_for_weights_of_three_digits(weights):
    shares = integer_shares(weights)
    total = sum(Fraction(str(weight)) for weight in weights.values())
    period = sum(shares.values())
    assert period <= MAX_PERIOD
    assert {name: Fraction(n, period) for name, n in shares.items()} == {
        name: Fraction(str(weight)) / total for name, weight in weights.items()
    }


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=3), st.floats(0.01, 10.0), min_size=1, max_size=12))
def test_any_share_moves_by_less_than_one_slot_in_65536(weights):
    shares = integer_shares(weights)
    total = sum(Fraction(str(weight)) for weight in weights.values())
    period = sum(shares.values())
    assert period <= MAX_PERIOD
    for name, weight in weights.items():
        assert abs(Fraction(shares[name], period) - Fraction(str(weight)) / total) < Fraction(1, MAX_PERIOD)
