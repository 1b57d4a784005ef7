import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.regex import Regex
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def score(grader: Regex, text: str, gold: object = None) -> float:
    given = grader.score(GradeInput(text, text, gold=gold))
    return given.value if isinstance(given, Score) else given


def test_a_pattern_that_cannot_be_compiled_is_refused() -> None:
    for pattern in ("(", r"(a)\1", "(?=a)"):
        with pytest.raises(ValidationError):
            Regex(pattern=pattern)


def test_a_comparison_needs_the_group() -> None:
    with pytest.raises(ValidationError, match=r"needs a group \(\?P<answer>"):
        Regex(pattern=r"(\d+)", compare="gold")


def test_without_search_all_of_the_text_must_match_to_be_compared() -> None:
    grader = Regex(pattern=r"= *(?P<answer>\d+)", compare="gold")

    assert score(grader, "= 5", gold=5) == 1
    assert score(grader, "x = 5", gold=5) == 0


def test_a_group_that_takes_no_part_is_no_answer() -> None:
    assert score(Regex(pattern=r"x|(?P<answer>\d+)", compare="gold"), "x", gold="5") == 0


def test_a_gold_to_compare_with_must_be_there() -> None:
    grader = Regex(pattern=r"(?P<answer>.*)", compare="gold")

    for gold in (None, "", " ", [1], True):
        with pytest.raises(DataError, match="the gold must be a text or a number"):
            grader.check_row(GradeInput("", None, gold=gold))
    Regex(pattern=".").check_row(GradeInput("", None))


def test_half_a_character_is_matched_as_the_replacement_character() -> None:
    assert score(Regex(pattern="a\ufffdb"), "a\ud800b") == 1
