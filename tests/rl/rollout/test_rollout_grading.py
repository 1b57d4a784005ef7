"""Training continues without rewards for as many steps as allowed, and no reward is invented."""

from collections.abc import Sequence

import pytest

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import ServerError
from posttrain.rl.client.transport import OutageError
from posttrain.rl.rollout.collector import TrainingGrades
from posttrain.train.recipe import UnavailableError
from rl.rl_recipes import WrittenServer
from rl.written_rollouts import a_prompt, a_rollout

ROLLOUTS = [a_rollout(a_prompt(0), sample, [7, 8], None) for sample in range(2)]


class FailingServer:
    """Fails with the given errors in turn, where None is a success, and then always answers."""

    def __init__(self, *failures: ServerError | None) -> None:
        self._failures = list(failures)
        self._answers = WrittenServer([1.0, 0.0])

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure
        return self._answers.grade(iteration, label, items)


AWAY, REFUSED = OutageError("nobody answers"), ServerError("this is no dataserver")


def rewards(grades: TrainingGrades, iteration: int) -> list[float | None]:
    ungraded = [a_rollout(a_prompt(0, is_too_long=True), n, [7, 8]) for n in range(1)]
    return [each.reward for each in grades.graded(iteration, "train", [*ROLLOUTS, *ungraded])]


def test_what_is_too_long_is_not_sent_and_keeps_its_place() -> None:
    server = FailingServer()
    first = a_rollout(a_prompt(0, is_too_long=True), 0, [])
    made = TrainingGrades(server, 0).graded(0, "train", [first, *ROLLOUTS])
    assert [each.reward for each in made] == [None, 1.0, 0.0]


def test_without_leave_the_first_outage_stops() -> None:
    with pytest.raises(UnavailableError, match="nobody answers"):
        rewards(TrainingGrades(FailingServer(AWAY), 0), 3)


def test_as_many_outages_in_a_row_are_borne_as_are_allowed_and_a_success_begins_anew() -> None:
    grades = TrainingGrades(FailingServer(AWAY, AWAY, None, AWAY, AWAY, AWAY), 2)
    assert rewards(grades, 0) == rewards(grades, 1) == [None] * 3
    assert rewards(grades, 2) == [1.0, 0.0, None]
    assert rewards(grades, 3) == rewards(grades, 4) == [None] * 3
    with pytest.raises(UnavailableError, match="nobody answers"):
        rewards(grades, 5)


def test_a_failure_that_will_not_pass_stops_at_once() -> None:
    with pytest.raises(UnavailableError, match="no dataserver"):
        rewards(TrainingGrades(FailingServer(REFUSED), 9), 0)
