"""Grade completions on all ranks; missing rewards are never made up."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar, cast

from accelerate.utils import gather_object

from posttrain.base.processes import process_count
from posttrain.dataserver.schemas import GradeItem, GradeResult, SampledBy
from posttrain.errors import ToolkitError
from posttrain.rl.client.transport import OutageError
from posttrain.rl.rollout.rollout import Rollout
from posttrain.train.recipe import UnavailableError

T = TypeVar("T")
logger = logging.getLogger(__name__)


class GradeSource(Protocol):
    """Grades completions; the dataserver's client is one."""

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        """One result per item, in item order; `label` names the request within the run."""
        ...


def grade_all(grades: GradeSource, iteration: int, label: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with their results, those without tokens as they are; ServerError if that fails."""
    asked = [each for each in rollouts if each.tokens]
    if not asked:
        return list(rollouts)
    items = [
        GradeItem(
            item_id=str(number),
            sample_id=each.prompt.sample_id,
            completion=each.text,
            completion_tokens=each.tokens,
            truncated=each.was_cut,
            slot=each.prompt.slot,
            attempt=each.prompt.attempt,
            rollout=_sampled_by(each),
        )
        for number, each in enumerate(asked)
    ]
    results = iter(grades.grade(iteration, label, items))
    return [replace(each, result=next(results)) if each.tokens else each for each in rollouts]


def _sampled_by(rollout: Rollout) -> SampledBy:
    """How a completion was sampled, for the journal."""
    versions = sorted({int(each) for each in rollout.versions[[0, -1]]}) if rollout.tokens else [0]
    return SampledBy(versions=versions, temperature=rollout.temperature, origin=rollout.prompt.origin)


class RefusedError(UnavailableError):
    """The dataserver or the engine refuses the request, so waiting would not help."""


def on_all_ranks(ask: Callable[[], T]) -> T:
    """Call `ask` on every rank, and return its answer only if all ranks got one.

    Raises:
        UnavailableError: this rank's call failed, or another rank's, which is then named; RefusedError if this rank's
            would fail again: the server refused it, or the engine's own code failed.
    """
    failure = answer = None
    try:
        answer = ask()
    except ToolkitError as error:
        failure = error
    mine = [None if failure is None else str(failure)]
    told = mine if process_count() == 1 else gather_object(mine)
    if failure is not None:
        raise (UnavailableError if isinstance(failure, OutageError) else RefusedError)(str(failure))
    for rank, reason in enumerate(told):
        if reason is not None:
            raise UnavailableError(f"process {rank}: {reason}")
    return cast(T, answer)


class Abstention:
    """Decides whether training may go on without rewards."""

    def __init__(self, most: int) -> None:
        """`most`: for how many generations in a row training may go on without rewards."""
        self._most = most
        self._failed: list[int] = []

    def graded(self, iteration: int, ask: Callable[[], list[Rollout]], ungraded: list[Rollout]) -> list[Rollout]:
        """What `ask` returns, or `ungraded` if it fails on any rank and training may go on; all ranks call it together.

        Raises:
            UnavailableError: there are no rewards, and training may not go on without them.
        """
        try:
            found = on_all_ranks(ask)
        except UnavailableError as error:
            self._go_on_without(iteration, error)
            return ungraded
        self._failed.clear()
        return found

    def _go_on_without(self, iteration: int, failure: UnavailableError) -> None:
        if iteration not in self._failed:
            self._failed.append(iteration)
        if isinstance(failure, RefusedError) or len(self._failed) > self._most:
            raise failure
        logger.warning(
            "step %d has no rewards and trains nothing (%d of at most %d in a row): %s",
            iteration,
            len(self._failed),
            self._most,
            failure,
        )
