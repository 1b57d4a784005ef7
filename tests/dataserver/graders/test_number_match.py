"""number_match: cases beyond its table."""

import pytest

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.number_match import NumberMatch
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def score(answer: str, gold: object, **params: object) -> float:
    given = NumberMatch.model_validate(params).score(GradeInput(answer, answer, gold=gold))
    return given.value if isinstance(given, Score) else given


def test_the_tags_can_be_others():
    assert score("Answer: 72 of 80", 72, open="Answer:", close="") == 1.0
    assert score("[a]72[/a]", 72, open="[a]", close="[/a]") == 1.0


@pytest.mark.parametrize("gold", [None, "", "x", "3 or 4"])
def test_a_row_without_a_number_is_refused(gold: object):
    with pytest.raises(DataError):
        NumberMatch().check_row(GradeInput("", None, gold=gold))
