"""number_exact: cases beyond its table."""

import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.catalogue import built_in_graders
from posttrain.dataserver.graders.number_exact import NumberExact
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.graders.text.extraction import AfterMarker
from posttrain.errors import DataError

# Formats found in GSM8K: a solution with inline calculations, then the answer after ####.
SOLUTIONS = [
    ("She sold 48/2 = <<48/2=24>>24 clips, then 48+24 = <<48+24=72>>72.\n#### 72", "72", "73"),
    ("It cost $500*2=$<<500*2=1000>>1000, so $1,080 in all.\n#### 1,080", "1,080", "1,081"),
    ("2*54,600,000=<<2*54600000=109200000>>109,200,000\n#### 109,200,000", "109,200,000", "109,200,001"),
    ("From 3 it falls by 10: 3-10=<<3-10=-7>>-7 degrees.\n#### -7", "-7", "-6"),
    ("Half of it is $<<12.5/2=6.25>>6.25.\n#### $6.25", "6.25", "7.25"),
]


def score(answer: str, gold: object, **params: object) -> float:
    given = NumberExact.model_validate(params).score(GradeInput(answer, answer, gold=gold))
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize(("solution", "gold", "wrong"), SOLUTIONS)
def test_a_solution_is_right_with_its_gold_and_wrong_with_another(solution: str, gold: str, wrong: str):
    for extract in (AfterMarker(after="####"), "last_number"):
        assert score(solution, gold, extract=extract) == 1.0
        assert score(solution, wrong, extract=extract) == 0.0


def test_math_exact_is_another_name_for_it():
    assert built_in_graders()["math_exact"] is NumberExact
    assert NumberExact.model_validate({"type": "math_exact"}).type == "math_exact"


@pytest.mark.parametrize("gold", [None, True, "", "no number", "3 or 4", "1/2", ["72"]])
def test_a_row_without_a_number_is_refused(gold: object):
    with pytest.raises(DataError):
        NumberExact().check_row(GradeInput("", None, gold=gold))


def test_the_numbers_are_counted_where_the_number_is_looked_for():
    boxed = r"1 + 2 + 3 = \boxed{6}"

    assert score(boxed, 6, max_numbers=1) == 0.0
    assert score(boxed, 6, max_numbers=1, extract="boxed") == 1.0
    assert score(r"\boxed{5, 6}", 6, max_numbers=1, extract="boxed") == 0.0


def test_fractions_and_dates_are_counted_too():
    assert score("1/2 or 6", 6, max_numbers=1) == 0.0
    assert score("1/2 or 6", 6, max_numbers=2) == 1.0


def test_a_giant_exponent_is_no_number():
    assert score("1e999999999", 10) == 0.0
    assert score("1e9999", "1e9999", relative_tolerance=0.1, absolute_tolerance=1e300) == 1.0


@pytest.mark.parametrize("params", [{"relative_tolerance": -0.1}, {"relative_tolerance": 1.0}, {"max_numbers": 0}])
def test_settings_that_make_no_sense_are_refused(params: dict[str, float]):
    with pytest.raises(ValidationError):
        NumberExact.model_validate(params)
