"""answer_partial: cases beyond its table."""

import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.answer_partial import AnswerPartial
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def test_the_defaults_are_a_scale_from_minus_2_to_5():
    # (3.5 + 2) / 7, (2 + 2) / 7 and (1.5 + 2) / 7
    grader = AnswerPartial()

    assert [grader.after_trimming, grader.within_10_percent, grader.within_20_percent] == [
        pytest.approx(each, abs=5e-4) for each in (5.5 / 7, 4 / 7, 3.5 / 7)
    ]


def test_what_is_nearer_must_not_earn_less():
    with pytest.raises(ValidationError, match="must not increase"):
        AnswerPartial(within_10_percent=0.4)


@pytest.mark.parametrize("gold", [None, "", "  ", True, ["100"]])
def test_a_row_without_a_text_is_refused(gold: object):
    with pytest.raises(DataError):
        AnswerPartial().check_row(GradeInput("", None, gold=gold))


def test_white_space_inside_a_group_is_seen():
    grader = AnswerPartial.model_validate({"extract": {"regex": "<SOLUTION>(.+?)</SOLUTION>"}})
    answer = "<SOLUTION> 100 </SOLUTION>"

    assert grader.score(GradeInput(answer, answer, gold="100")) == (0.786, "equal except for white space")


def test_a_gold_of_thousands_of_digits_is_refused():
    with pytest.raises(DataError, match="a very large number"):
        AnswerPartial().check_row(GradeInput("", None, gold=10**5000))
