"""Fences around an answer, and strict JSON parsing."""

import pytest

from posttrain.dataserver.graders.text.fenced import parse_strictly, unfenced
from posttrain.errors import DataError


@pytest.mark.parametrize("text", ["```\n{}\n```", "```json\n{}\n```", " \n```JSON  \r\n{}\n```\n\n", "```c++\n{}```"])
def test_a_single_fence_is_taken_off(text: str) -> None:
    inside = unfenced(text)

    assert inside is not None
    assert inside.strip() == "{}"


@pytest.mark.parametrize(
    "text",
    ["{}", "```", "```json {} ```", "Here:\n```\n{}\n```", "```\n{}\n``` so", "```\n{}", "```two words\n{}\n```"],
)
def test_anything_around_it_is_left_there(text: str) -> None:
    assert unfenced(text) is None


def test_of_two_fences_the_outer_lines_are_taken_off() -> None:
    assert unfenced("```\n1\n```\n```\n2\n```") == "1\n```\n```\n2\n"


def test_a_number_beyond_any_float_is_refused_wherever_it_stands() -> None:
    for text in ("1e999", "[[-1e999]]", '{"a": {"b": 1e309}}', "1" + "0" * 400, "9" * 5000):
        with pytest.raises(DataError):
            parse_strictly(text)


def test_large_numbers_that_fit_are_kept() -> None:
    assert parse_strictly("[1e308, 123456789012345678901234567890, -0.0, true]") == [
        1e308,
        123456789012345678901234567890,
        0.0,
        True,
    ]


def test_half_a_character_is_no_json_unless_it_is_escaped() -> None:
    with pytest.raises(DataError, match="not UTF-8"):
        parse_strictly('"\ud800"')
    assert parse_strictly('"\\ud800"') == "\ud800"


def test_nesting_ends_at_a_hundred_levels() -> None:
    assert parse_strictly("[" * 100 + "]" * 100)
    for depth in (101, 500_000):
        with pytest.raises(DataError, match="nested deeper than 100 levels"):
            parse_strictly("[" * depth + "]" * depth)
