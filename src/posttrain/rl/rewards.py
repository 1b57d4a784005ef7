"""The one reward function that TRL is given: what the dataserver answers, with nothing made up where it does not."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import RunError, ServerError
from posttrain.rl.client.errors import OutageError
from posttrain.rl.client.outages import Outage
from posttrain.rl.clock import Clock
from posttrain.rl.rollout.rollouts import Timer
from posttrain.rl.transcript import GradedCompletion
from posttrain.train.ranks import any_rank

logger = logging.getLogger(__name__)


class GradeSource(Protocol):
    """What grades: the client of the dataserver."""

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        """One result per item, in their order; `label` names the request within the run."""
        ...


class TotalReward:
    """Grades the completions of this rank; None where there is no reward, which TRL leaves out of the group's mean.

    `latest` holds what was graded last, for people to read.
    """

    # TRL names the function's metrics by it.
    __name__ = "total"

    def __init__(self, grades: GradeSource, clock: Clock, timer: Timer, abstain_steps: int) -> None:
        """`abstain_steps`: for how many steps in a row training may go on without rewards."""
        self._grades = grades
        self._clock = clock
        self.timer = timer
        self._abstain_steps = abstain_steps
        self._failed_steps: list[int] = []
        self.latest: list[GradedCompletion] = []

    def __call__(self, *, completion_ids: Sequence[Sequence[int]], **columns: Any) -> list[float | None]:
        """The rewards, in the order of the completions; `columns` are those of `Rollouts`, and what TRL adds.

        Raises:
            RunError: the completions belong to another step than the one in training.
            Outage: there are no rewards, and training may not go on without them.
        """
        step, generation = columns["trainer_state"].global_step, columns["generation"][0]
        self._require_step(generation, step)
        answered = zip(columns["asked"], columns["text"], completion_ids, columns["truncated"], strict=True)
        ungraded = [GradedCompletion(prompt, text, len(ids), cut, None) for prompt, text, ids, cut in answered]
        begin = time.perf_counter()
        self.latest = self._graded(step, generation, ungraded)
        self.timer.add("grade", begin)
        for name, value in statistics(self.latest):
            columns["log_metric"](name, value)
        return [each.reward for each in self.latest]

    def _require_step(self, generation: int, step: int) -> None:
        iteration = self._clock.iteration_of(generation)
        if iteration != step:
            raise RunError(f"the clock is off: completions of iteration {iteration} are graded at step {step}")

    def _graded(self, step: int, generation: int, completions: list[GradedCompletion]) -> list[GradedCompletion]:
        """The same with what the dataserver says of each; as they are where it cannot be asked."""
        asked = [each for each in completions if not each.prompt.is_too_long]
        failure: ServerError | None = None
        try:
            graded = iter(grade_all(self._grades, step, f"train-{step}-{generation}", asked))
        except ServerError as error:
            graded, failure = iter(()), error
        if any_rank(failure is not None):
            self._go_on_without(step, failure)
            return completions
        self._failed_steps.clear()
        return [each if each.prompt.is_too_long else next(graded) for each in completions]

    def _go_on_without(self, step: int, failure: ServerError | None) -> None:
        reason = str(failure) if failure else "another process could not have its completions graded"
        if step not in self._failed_steps:
            self._failed_steps.append(step)
        will_not_pass = failure is not None and not isinstance(failure, OutageError)
        if will_not_pass or len(self._failed_steps) > self._abstain_steps:
            raise Outage(reason)
        logger.warning(
            "step %d has no rewards and teaches nothing (%d of at most %d in a row): %s",
            step,
            len(self._failed_steps),
            self._abstain_steps,
            reason,
        )


def grade_all(
    grades: GradeSource, step: int, label: str, completions: Sequence[GradedCompletion]
) -> list[GradedCompletion]:
    """The same completions with their results; ServerError where there are none."""
    if not completions:
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
        for number, each in enumerate(completions)
    ]
    results = grades.grade(step, label, items)
    return [replace(each, result=result) for each, result in zip(completions, results, strict=True)]


def statistics(graded: Sequence[GradedCompletion]) -> list[tuple[str, float]]:
    """Names and values of which the means over all completions are worth knowing."""
    values: list[tuple[str, float]] = []
    for each in graded:
        values.append(("too_long_prompts", float(each.prompt.is_too_long)))
        values.append(("truncated_share", float(each.was_cut)))
        if each.result is None:
            continue
        values.append(("abstained", float(each.result.status == "abstain")))
        values.append(("failed", float(each.result.status == "error")))
        if each.result.reward is not None:
            values.append((f"rewards/{each.prompt.dataset}", each.result.reward))
        for name, component in each.result.components.items():
            if component.score is not None:
                values.append((f"graders/{name}", component.score))
    return values
