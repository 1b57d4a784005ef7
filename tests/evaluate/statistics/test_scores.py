"""From graded answers to a value for each prompt: an answer without a grade is never 0."""

from functools import partial

import pytest

from posttrain.evaluate.statistics.pass_at_k import prompt_pass_at_k
from posttrain.evaluate.statistics.scores import Scores, scores_of_answers


def test_a_prompt_has_the_mean_of_its_graded_answers_and_ungraded_ones_are_counted() -> None:
    found = scores_of_answers({"a": [1.0, 0.0, None], "b": [None, None, None], "c": [0.5, 0.5, 0.5]})
    assert found == Scores({"a": 0.5, "b": None, "c": 0.5}, ungraded=4)


def test_the_value_can_be_pass_at_k_and_prompts_with_too_few_graded_answers_have_none() -> None:
    # One of 4 right: 1 - C(3, 2)/C(4, 2) = 1/2. Rewards below 1 are not right.
    answers = {"a": [1.0, 0.0, 0.5, 0.0], "b": [1.0, None, None, None]}
    found = scores_of_answers(answers, value=partial(prompt_pass_at_k, k=2))
    assert found == Scores({"a": 0.5, "b": None}, ungraded=3)


def test_a_reward_outside_0_and_1_is_refused_by_name_and_a_loss_may_be_any_number() -> None:
    with pytest.raises(ValueError, match=r"prompt b.*1\.5"):
        Scores({"a": 1.0, "b": 1.5}, 0)
    assert scores_of_answers({"b": [1.5]}, "loss").values == {"b": 1.5}
