import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.category_match import CategoryMatch
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


def test_labels_are_told_apart_where_ones_sign_is_part_of_anothers() -> None:
    grader = CategoryMatch(allowed_categories=("C", "C++"), contained_score=0.5)

    assert grader.score(GradeInput("C++", "C++", gold="C")) == (0.0, "contains c++")
    assert grader.score(GradeInput("it is C++!", "it is C++!", gold="C++")) == (0.5, "contains c++")


def test_a_label_that_comes_twice_in_the_list_is_refused() -> None:
    with pytest.raises(ValidationError, match="'a b' appears more than once in allowed_categories"):
        CategoryMatch(allowed_categories=("A  b", "a B"))

    assert CategoryMatch(allowed_categories=("A", "a"), ignore_case=False).allowed_categories == ("A", "a")


def test_a_blank_label_is_refused() -> None:
    with pytest.raises(ValidationError):
        CategoryMatch(allowed_categories=("a", " "))


@pytest.mark.parametrize("gold", ["fish", None, 7, ["cat"], ""])
def test_a_gold_that_is_no_label_is_refused_before_the_start(gold: object) -> None:
    with pytest.raises(DataError, match="is not in allowed_categories"):
        CategoryMatch(allowed_categories=("cat", "dog")).check_row(GradeInput("", None, gold=gold))


def test_a_gold_may_be_a_number_or_a_truth_value() -> None:
    assert CategoryMatch(allowed_categories=("0", "1")).score(GradeInput("1", "1", gold=1)) == 1.0
    assert CategoryMatch(allowed_categories=("true", "false")).score(GradeInput("True", "True", gold=True)) == 1.0
