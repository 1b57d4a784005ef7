import pytest
from pydantic import ValidationError

from posttrain.dataserver.graders.completion_length_cap import CompletionLengthCap
from posttrain.dataserver.graders.text.completions import GradeInput


def test_a_cap_that_caps_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        CompletionLengthCap(max_tokens=10, over_score=1)


def test_a_length_that_is_not_told_may_earn_what_too_long_earns() -> None:
    grader = CompletionLengthCap(max_tokens=10, over_score=0.2, on_missing="fail")

    assert grader.score(GradeInput("", None)) == (0.2, "the trainer did not send the number of tokens")
