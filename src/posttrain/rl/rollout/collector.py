"""The rollouts of a generation: its prompts, completed by the engine and graded, by all ranks together."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.utils import gather_object

from posttrain.base.processes import process_count, process_rank
from posttrain.errors import ServerError
from posttrain.inference.engine import Completion, GenerationRequest, Sampling, derive_seed
from posttrain.rl.rollout.engines import RolloutEngine
from posttrain.rl.rollout.grading import TrainingGrades
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.memory_advice import Phase
from posttrain.train.out_of_memory import during
from posttrain.train.parallel import any_rank
from posttrain.train.recipe import UnavailableError


@dataclass
class Timer:
    """Seconds of one optimizer step, by what they were spent on."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, begin: float) -> None:
        """Count the time since `begin`, as `time.perf_counter` told it."""
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin


@dataclass(frozen=True)
class Collector:
    """Makes rollouts.

    Attributes:
        seed: that of the run, from which the seed of each completion comes.
        timer: gets the seconds of each part.
    """

    schedule: RolloutSchedule
    prompts: PromptSource
    engine: RolloutEngine
    grades: TrainingGrades
    tokenizer: Any
    sampling: Sampling
    seed: int
    timer: Timer

    def collect(self, generation: int) -> list[Rollout]:
        """All rollouts of a generation, those of one prompt next to each other; every rank gets them all.

        Raises:
            UnavailableError: the dataserver cannot be asked.
        """
        step = self.schedule.iteration_of(generation)
        began = time.perf_counter()
        self.engine.update(step)
        self.timer.add("sync", began)
        prompts = self._asked(generation)
        began = time.perf_counter()
        with during(Phase.GENERATE, f"while completions were generated after optimizer step {step}"):
            mine = self._completed(generation, step, prompts)
        self.timer.add("generate", began)
        began = time.perf_counter()
        graded = self.grades.graded(step, f"train-{step}-{generation}", mine)
        self.timer.add("grade", began)
        # Each rank has made an equal piece of the whole, in the order of the ranks.
        return graded if process_count() == 1 else gather_object(graded)

    def _asked(self, generation: int) -> Sequence[Prompt]:
        prompts: Sequence[Prompt] = ()
        failure: ServerError | None = None
        try:
            prompts = self.prompts.of_generation(generation)
        except ServerError as error:
            failure = error
        if any_rank(failure is not None):
            raise UnavailableError(str(failure) if failure else "another process could not ask for its prompts")
        return prompts

    def _completed(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """This rank's rollouts, not graded yet."""
        group = self.schedule.generations
        share = len(prompts) * group // process_count()
        places = [divmod(number, group) for number in range(process_rank() * share, (process_rank() + 1) * share)]
        made = self._generated(generation, prompts, places)
        return [
            Rollout.of(
                prompts[slot],
                sample,
                made.get((slot, sample)),
                self.tokenizer,
                stop=self.sampling.stop,
                version=version,
                temperature=self.sampling.temperature,
            )
            for slot, sample in places
        ]

    def _generated(
        self, generation: int, prompts: Sequence[Prompt], places: Sequence[tuple[int, int]]
    ) -> dict[tuple[int, int], Completion]:
        """The completions by slot and sample; none for a prompt that is too long."""
        wanted: dict[int, list[int]] = {}
        for slot, sample in places:
            if not prompts[slot].is_too_long:
                wanted.setdefault(slot, []).append(sample)
        requests = [
            GenerationRequest(
                prompts[slot].ids, tuple(derive_seed(self.seed, generation, slot, sample) for sample in samples)
            )
            for slot, samples in wanted.items()
        ]
        made = self.engine.complete(requests, self.sampling) if requests else {}
        return {
            (slot, sample): made[position, number]
            for position, (slot, samples) in enumerate(wanted.items())
            for number, sample in enumerate(samples)
        }
