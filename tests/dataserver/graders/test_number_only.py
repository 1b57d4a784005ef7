"""number_only: the edges of the steps of its scale."""

import pytest

from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.number_only import NumberOnly
from posttrain.dataserver.graders.text.completions import GradeInput


@pytest.mark.parametrize(
    ("beside", "wanted"),
    [
        (0, 1.0), (1, 0.5), (9, 0.5), (10, 0.4), (19, 0.4), (20, 0.3), (29, 0.3), (30, 0.2), (39, 0.2), (40, 0.1),
        (49, 0.1), (50, 0.0), (1000, 0.0),
    ],
)  # fmt: skip
def test_the_scale_goes_down_with_the_characters_beside_the_number(beside: int, wanted: float):
    answer = "72" + "?" * beside
    given = NumberOnly().score(GradeInput(answer, answer))

    assert isinstance(given, Score)
    assert given.value == wanted
