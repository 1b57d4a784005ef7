"""Holm's adjustment, worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluate.statistics.holm import holm


def test_the_smallest_counts_most_and_none_is_below_the_one_before() -> None:
    # 0.005·4 = 0.02; 0.01·3 = 0.03; 0.03·2 = 0.06; 0.04·1 = 0.04, but no less than 0.06.
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]


def test_one_model_needs_no_adjustment_and_no_value_exceeds_1() -> None:
    assert holm({"a": 0.03}) == {"a": 0.03}
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_the_order_stays_and_values_lie_between_the_unadjusted_and_bonferronis(values: list[float]) -> None:
    names = {str(place): p for place, p in enumerate(values)}
    found = holm(names)
    assert all(p <= found[name] <= min(1.0, len(names) * p) for name, p in names.items())
    ordered = sorted(names, key=lambda name: names[name])
    assert [found[name] for name in ordered] == sorted(found.values())
