import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.json_equal import JsonEqual
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError

LEAVES = st.sampled_from([None, True, False, 0, 1, 1.0, -2.5, "", "1"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)


def score(grader: JsonEqual, text: str, gold: object) -> float:
    given = grader.score(GradeInput(text, text, gold=gold))
    return given.value if isinstance(given, Score) else given


@given(VALUES)
def test_a_value_equals_itself_however_it_is_written(value: Any) -> None:
    gold = json.dumps(value)

    for grader in (JsonEqual(), JsonEqual(ignore_order=True), JsonEqual(relative_tolerance=0.1)):
        assert score(grader, json.dumps(value, indent=3, ensure_ascii=False, sort_keys=True), gold) == 1


@given(VALUES, VALUES)
def test_values_are_equal_if_they_are_the_same_text_with_sorted_keys_and_decimal_points(one: Any, other: Any) -> None:
    def text(value: Any) -> str:
        return json.dumps(json.loads(json.dumps(value), parse_int=float), sort_keys=True)

    assert score(JsonEqual(), json.dumps(one), json.dumps(other)) == (text(one) == text(other))


@given(st.lists(VALUES, max_size=5).flatmap(lambda values: st.tuples(st.just(values), st.permutations(values))))
def test_with_order_ignored_every_order_is_right(pair: tuple[list[Any], list[Any]]) -> None:
    values, shuffled = pair

    assert score(JsonEqual(ignore_order=True), json.dumps({"a": [shuffled]}), json.dumps({"a": [values]})) == 1


def test_the_tolerance_is_a_share_of_the_gold_number() -> None:
    grader = JsonEqual(relative_tolerance=0.01)

    assert score(grader, "[101]", [100]) == 1
    assert score(grader, "[-99]", [-100]) == 1
    assert score(grader, "[101.1]", [100]) == 0
    assert score(grader, "[0.001]", [0]) == 0


def test_large_whole_numbers_are_compared_digit_by_digit() -> None:
    assert score(JsonEqual(), "9007199254740993", "9007199254740993") == 1
    assert score(JsonEqual(), "9007199254740992", "9007199254740993") == 0


def test_values_nested_as_deep_as_can_be_are_compared() -> None:
    deep = "[" * 100 + "]" * 100

    for grader in (JsonEqual(), JsonEqual(ignore_order=True)):
        assert score(grader, deep, deep) == 1
        assert score(grader, "[" + deep + "]", deep) == 0


@pytest.mark.parametrize("gold", ["Paris", "", "{", "[NaN]", float("nan"), {"a": object()}])
def test_a_gold_that_is_no_json_is_refused_before_the_start(gold: object) -> None:
    with pytest.raises(DataError, match="the gold is not usable as JSON"):
        JsonEqual().check_row(GradeInput("", None, gold=gold))


def test_order_and_tolerance_together_are_refused() -> None:
    with pytest.raises(ValidationError, match="set only one of ignore_order and relative_tolerance"):
        JsonEqual(ignore_order=True, relative_tolerance=0.1)
