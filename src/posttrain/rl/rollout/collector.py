"""Collect a generation's prompts, completions and rewards on all ranks; missing rewards are never made up."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

from accelerate.utils import gather_object

from posttrain.base.processes import process_count, process_rank
from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import ServerError
from posttrain.inference.engine import Sampling, derive_seed
from posttrain.rl.client.transport import OutageError
from posttrain.rl.rollout.engines import RolloutEngine, completed
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.memory import Phase, during
from posttrain.train.parallel import any_rank
from posttrain.train.recipe import UnavailableError

T = TypeVar("T")
logger = logging.getLogger(__name__)


class GradeSource(Protocol):
    """Grades completions; the dataserver's client is one."""

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        """One result per item, in item order; `label` names the request within the run."""
        ...


def grade_all(grades: GradeSource, iteration: int, label: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
    """The rollouts with their results; ServerError if they cannot be graded."""
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


class RefusedError(UnavailableError):
    """The dataserver refuses the request, so waiting would not help."""


def on_all_ranks(ask: Callable[[], T], elsewhere: str) -> T:
    """Call `ask` on every rank, and return its answer only if all ranks got one.

    Raises:
        UnavailableError: this rank's call failed, or another rank's (the message is then `elsewhere`); RefusedError if
            the server refused this rank's request.
    """
    failure = answer = None
    try:
        answer = ask()
    except ServerError as error:
        failure = error
    if any_rank(failure is not None):
        will_pass = failure is None or isinstance(failure, OutageError)
        raise (UnavailableError if will_pass else RefusedError)(str(failure) if failure else elsewhere)
    return cast(T, answer)


class TrainingGrades:
    """Grades training completions, and decides whether training may go on if that fails."""

    def __init__(self, grades: GradeSource, abstain_steps: int) -> None:
        """`abstain_steps`: for how many generations in a row training may go on without rewards."""
        self._grades = grades
        self._abstain_steps = abstain_steps
        self._failed: list[int] = []

    def graded(self, iteration: int, label: str, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with the dataserver's results, or unchanged if they cannot be graded and training may go on.

        All ranks call it together, each with its own share.

        Raises:
            UnavailableError: there are no rewards, and training may not go on without them.
        """
        asked = [each for each in rollouts if not each.prompt.is_too_long]
        try:
            found = iter(
                on_all_ranks(
                    lambda: grade_all(self._grades, iteration, label, asked),
                    "another process could not have its completions graded",
                )
            )
        except UnavailableError as error:
            self._go_on_without(iteration, error)
            return list(rollouts)
        self._failed.clear()
        return [each if each.prompt.is_too_long else next(found) for each in rollouts]

    def _go_on_without(self, iteration: int, failure: UnavailableError) -> None:
        if iteration not in self._failed:
            self._failed.append(iteration)
        if isinstance(failure, RefusedError) or len(self._failed) > self._abstain_steps:
            raise failure
        logger.warning(
            "step %d has no rewards and trains nothing (%d of at most %d in a row): %s",
            iteration,
            len(self._failed),
            self._abstain_steps,
            failure,
        )


@dataclass
class Timer:
    """Seconds of one optimizer step, by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, begin: float) -> None:
        """Add the time since `begin`, a reading of `time.perf_counter`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class Collector:
    """Makes rollouts.

    Attributes:
        sampling: how an iteration's completions are sampled.
        seed: the run's seed; each completion's seed is derived from it.
        timer: receives the seconds of each activity.
    """

    schedule: RolloutSchedule
    prompts: PromptSource
    engine: RolloutEngine
    grades: TrainingGrades
    tokenizer: Any
    sampling: Callable[[int], Sampling]
    seed: int
    timer: Timer

    def collect(self, generation: int) -> list[Rollout]:
        """All rollouts of a generation, those of one prompt adjacent; every rank gets them all.

        Raises:
            UnavailableError: the dataserver gives no prompts, or no rewards and training may not go on without them.
        """
        step = self.schedule.iteration_of(generation)
        began = time.perf_counter()
        self.engine.update(step)
        self.timer.add("sync", began)
        prompts = on_all_ranks(
            lambda: self.prompts.of_generation(generation), "another process could not get its prompts"
        )
        began = time.perf_counter()
        with during(Phase.GENERATE, f"while completions were generated after optimizer step {step}"):
            mine = self._completed(generation, step, prompts)
        self.timer.add("generate", began)
        began = time.perf_counter()
        graded = self.grades.graded(step, f"train-{step}-{generation}", mine)
        self.timer.add("grade", began)
        # Each rank has made an equal share of the whole, in rank order.
        return graded if process_count() == 1 else gather_object(graded)

    def _completed(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """This rank's rollouts, ungraded."""
        group = self.schedule.generations
        share = len(prompts) * group // process_count()
        places = [divmod(number, group) for number in range(process_rank() * share, (process_rank() + 1) * share)]
        asked = [(prompts[slot], sample, derive_seed(self.seed, generation, slot, sample)) for slot, sample in places]
        return completed(self.engine, asked, self.tokenizer, self.sampling(version), version)
