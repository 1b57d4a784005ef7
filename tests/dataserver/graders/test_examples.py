"""Every line of every grader's table holds, and each table shows a full score and a zero."""

import pytest

from dataserver.graders.table_lines import grade_input
from dataserver.sandboxes import runnable
from posttrain.dataserver.graders.base import Abstain, Example, Grader, Score
from posttrain.dataserver.graders.catalogue import built_in_graders
from posttrain.dataserver.graders.python import PythonGrader
from posttrain.dataserver.graders.remote import RemoteGrader

GRADERS = built_in_graders()
# Tables cannot show what a service or a user's code returns.
SELF_CONTAINED = [name for name, grader in GRADERS.items() if not issubclass(grader, RemoteGrader | PythonGrader)]
LINES = [
    pytest.param(grader, example, id=f"{name}-{number}")
    for name, grader in GRADERS.items()
    for number, example in enumerate(grader.examples)
]


def answer(grader: type[Grader], example: Example) -> float | None:
    built = grader.model_validate({**runnable(grader), **example.params})
    try:
        given = built.score(grade_input(example))
    except Abstain:
        return None
    return given.value if isinstance(given, Score) else given


@pytest.mark.parametrize(("grader", "example"), LINES)
def test_a_line_of_the_table_holds(grader: type[Grader], example: Example) -> None:
    given = answer(grader, example)

    assert given == (None if example.score is None else pytest.approx(example.score, abs=1e-6))


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_a_table_has_a_full_score_and_none(name: str) -> None:
    scores = [example.score for example in GRADERS[name].examples]

    assert 1.0 in scores
    assert 0.0 in scores
