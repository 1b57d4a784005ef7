import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.contains import Contains
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def score(grader: Contains, text: str, gold: object = None) -> float:
    given = grader.score(GradeInput(text, text, gold=gold))
    return given.value if isinstance(given, Score) else given


def test_a_fraction_is_of_what_is_enough() -> None:
    grader = Contains(texts=("a1", "b2", "c3", "d4"), at_least=3, fraction=True)

    assert score(grader, "a1") == pytest.approx(1 / 3)
    assert score(grader, "a1 b2 c3") == 1
    assert score(grader, "a1 b2 c3 d4") == 1


def test_a_forbidden_text_outweighs_everything() -> None:
    assert score(Contains(texts=("a",), forbidden=("as an ai",), fraction=True), "A. As an AI") == 0


def test_whole_words_may_begin_and_end_with_signs() -> None:
    grader = Contains(texts=("C++",), whole_words=True)

    assert score(grader, "in C++.") == 1
    assert score(grader, "in C++11") == 0


def test_a_text_named_twice_counts_once() -> None:
    assert score(Contains(texts=("a", "a"), at_least=1), "a") == 1
    with pytest.raises(ValidationError, match="at_least is 2, but only 1"):
        Contains(texts=("a", "a"), at_least=2)


def test_nothing_to_look_for_is_refused() -> None:
    with pytest.raises(ValidationError, match="texts and forbidden are both empty"):
        Contains(texts=())
    with pytest.raises(ValidationError):
        Contains(texts=(" ",))


def test_a_gold_that_cannot_be_looked_for_is_refused_before_the_start() -> None:
    for gold in (None, [], ["a", 5], " "):
        with pytest.raises(DataError, match="the gold must be a text or a list of texts"):
            Contains().check_row(GradeInput("", None, gold=gold))
    with pytest.raises(DataError, match="at_least is 3, but only 2"):
        Contains(at_least=3).check_row(GradeInput("", None, gold=["a", "b"]))
    Contains(texts=("a",)).check_row(GradeInput("", None))
