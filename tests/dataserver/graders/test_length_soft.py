import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from posttrain.dataserver.graders.length_soft import LengthSoft
from posttrain.dataserver.graders.text.completions import GradeInput


@given(st.integers(0, 3000))
def test_the_soft_limit_is_the_punishment_of_dapo_plus_one(length: int) -> None:
    if length <= 1500:
        punishment = 0.0
    elif length <= 2000:
        punishment = (1500 - length) / 500
    else:
        punishment = -1.0

    given = LengthSoft(max_tokens=2000, buffer_tokens=500).score(GradeInput("", None, completion_tokens=length))

    assert given == pytest.approx(1 + punishment)


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    assert LengthSoft(max_tokens=10, buffer_tokens=10).score(GradeInput("", None, completion_tokens=5)) == 0.5
    with pytest.raises(ValidationError, match="buffer_tokens must be at most max_tokens, 10, not 11"):
        LengthSoft(max_tokens=10, buffer_tokens=11)
