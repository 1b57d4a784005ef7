"""Rewards of rollouts from the dataserver; a missing reward stays missing."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import ServerError
from posttrain.rl.client.transport import OutageError
from posttrain.rl.rollout.rollout import Rollout
from posttrain.train.parallel import any_rank
from posttrain.train.recipe import UnavailableError

T = TypeVar("T")
logger = logging.getLogger(__name__)


class GradeSource(Protocol):
    """What grades: the client of the dataserver."""

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        """One result per item, in their order; `label` names the request within the run."""
        ...


def grade_all(grades: GradeSource, iteration: int, label: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The same rollouts with their results; ServerError where there are none."""
    if not rollouts:
        return []
    items = [
        GradeItem(
            item_id=str(number),
            sample_id=each.prompt.sample_id,
            completion=each.text,
            completion_tokens=each.tokens,
            truncated=each.was_cut,
            slot=each.prompt.slot,
        )
        for number, each in enumerate(rollouts)
    ]
    results = grades.grade(iteration, label, items)
    return [replace(each, result=result) for each, result in zip(rollouts, results, strict=True)]


def on_all_ranks(ask: Callable[[], T], elsewhere: str) -> T:
    """What the dataserver is asked for, on every rank or on none.

    Raises:
        UnavailableError: it cannot be asked, by this rank or (`elsewhere`) by another.
    """
    failure = answer = None
    try:
        answer = ask()
    except ServerError as error:
        failure = error
    if any_rank(failure is not None):
        raise UnavailableError(str(failure) if failure else elsewhere)
    return cast(T, answer)


class TrainingGrades:
    """Grades what is trained, and decides whether training may go on where that fails."""

    def __init__(self, grades: GradeSource, abstain_steps: int) -> None:
        """`abstain_steps`: for how many generations in a row training may go on without rewards."""
        self._grades = grades
        self._abstain_steps = abstain_steps
        self._failed: list[int] = []

    def graded(self, iteration: int, label: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The same with what the dataserver says of each; as they are where it cannot be asked.

        All ranks call it together, each with its own share.

        Raises:
            UnavailableError: there are no rewards, and training may not go on without them.
        """
        asked = [each for each in rollouts if not each.prompt.is_too_long]
        failure: ServerError | None = None
        found = iter(())
        try:
            found = iter(grade_all(self._grades, iteration, label, asked))
        except ServerError as error:
            failure = error
        if any_rank(failure is not None):
            self._go_on_without(iteration, failure)
            return list(rollouts)
        self._failed.clear()
        return [each if each.prompt.is_too_long else next(found) for each in rollouts]

    def _go_on_without(self, iteration: int, failure: ServerError | None) -> None:
        reason = str(failure) if failure else "another process could not have its completions graded"
        if iteration not in self._failed:
            self._failed.append(iteration)
        will_not_pass = failure is not None and not isinstance(failure, OutageError)
        if will_not_pass or len(self._failed) > self._abstain_steps:
            raise UnavailableError(reason)
        logger.warning(
            "step %d has no rewards and trains nothing (%d of at most %d in a row): %s",
            iteration,
            len(self._failed),
            self._abstain_steps,
            reason,
        )
