"""pass@k, against a count of all choices."""

from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.evaluate.statistics.pass_at_k import pass_at_k, prompt_pass_at_k


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_is_the_share_of_choices_with_a_right_answer(right: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(right)))
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(fmean(map(any, combinations(right, k))))


def test_it_is_exact_for_many_answers() -> None:
    # One right answer among 100,000 is among ten of them with a chance of 10/100,000.
    assert pass_at_k(100_000, 1, 10) == 1e-4
    # Half of 1,000 are right: 500 wrong ones cannot all be among 501.
    assert pass_at_k(1_000, 500, 501) == 1


@pytest.mark.parametrize(("answers", "right", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_what_has_no_answer_is_refused(answers: int, right: int, k: int) -> None:
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(answers, right, k)


def test_a_prompt_with_fewer_graded_answers_than_k_has_none() -> None:
    assert prompt_pass_at_k([1.0, 0.0], 3) is None
    assert prompt_pass_at_k([1.0, 0.0], 2) == 1
