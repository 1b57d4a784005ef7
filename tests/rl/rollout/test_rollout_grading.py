"""Training continues without rewards for as many steps as allowed, and no reward is invented."""

from collections.abc import Sequence

import pytest

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import ServerError
from posttrain.rl.client.transport import OutageError
from posttrain.rl.rollout.grading import Abstention, GradeSource, grade_all
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


UNGRADED = a_rollout(a_prompt(0, is_too_long=True), 0, [])


def rewards(abstention: Abstention, server: GradeSource, iteration: int) -> list[float | None]:
    rollouts = [*ROLLOUTS, UNGRADED]
    graded = abstention.graded(iteration, lambda: grade_all(server, iteration, "train", rollouts), rollouts)
    return [each.reward for each in graded]


def test_what_is_too_long_is_not_sent_and_keeps_its_place() -> None:
    made = grade_all(FailingServer(), 0, "train", [UNGRADED, *ROLLOUTS])
    assert [each.reward for each in made] == [None, 1.0, 0.0]


def test_without_leave_the_first_outage_stops() -> None:
    with pytest.raises(UnavailableError, match="nobody answers"):
        rewards(Abstention(0), FailingServer(AWAY), 3)


def test_as_many_outages_in_a_row_are_borne_as_are_allowed_and_a_success_begins_anew() -> None:
    abstention, server = Abstention(2), FailingServer(AWAY, AWAY, None, AWAY, AWAY, AWAY)
    assert rewards(abstention, server, 0) == rewards(abstention, server, 1) == [None] * 3
    assert rewards(abstention, server, 2) == [1.0, 0.0, None]
    assert rewards(abstention, server, 3) == rewards(abstention, server, 4) == [None] * 3
    with pytest.raises(UnavailableError, match="nobody answers"):
        rewards(abstention, server, 5)


def test_a_failure_that_will_not_pass_stops_at_once() -> None:
    with pytest.raises(UnavailableError, match="no dataserver"):
        rewards(Abstention(9), FailingServer(REFUSED), 0)
