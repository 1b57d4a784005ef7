import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.json_valid import JsonValid
from posttrain.dataserver.graders.text.completions import GradeInput


def score(grader: JsonValid, text: str) -> tuple[float, str]:
    value, detail = grader.score(GradeInput(text, text))  # type: ignore[misc]
    return value, detail


def test_the_detail_says_why_a_text_is_refused() -> None:
    assert score(JsonValid(), "{") == (0.0, "not JSON at column 2: Expecting property name enclosed in double quotes")
    assert score(JsonValid(), '{"a": -Infinity}') == (0.0, "-Infinity is not JSON; leave the value out or write null")
    assert score(JsonValid(), "[1]") == (0.0, "no object")
    assert score(JsonValid(required_keys=("b",)), '{"a": 1}') == (0.0, "the key 'b' is missing")


def test_the_fewest_keys_are_those_of_the_outermost_value() -> None:
    grader = JsonValid(min_keys=2)

    assert score(grader, '{"a": {"b": 1, "c": 2}}')[0] == 0
    assert score(grader, '{"a": 1, "b": {}}')[0] == 1


def test_any_value_is_taken_if_any_is_wanted() -> None:
    grader = JsonValid(require="any")

    for text in ("null", "false", '""', "0", '"x"', "[0]"):
        assert score(grader, text)[0] == 1
    assert score(grader, "[]")[0] == 0


def test_a_long_text_is_not_read() -> None:
    assert score(JsonValid(max_chars=8), '{"a": 1}')[0] == 1
    assert score(JsonValid(max_chars=7), '{"a": 1}') == (0.0, "longer than 7 characters")


def test_required_keys_are_of_an_object() -> None:
    with pytest.raises(ValidationError, match="set require: object"):
        JsonValid(require="any", required_keys=("a",))
