"""Collect the rollouts of a generation on all ranks: prompts, completions and rewards."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate.utils import gather_object

from posttrain.base.processes import process_count, process_rank
from posttrain.inference.engine import Sampling, derive_seed
from posttrain.rl.rollout.engines import RolloutEngine, completed
from posttrain.rl.rollout.grading import TrainingGrades, on_all_ranks
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.memory import Phase, during


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
        prompts = on_all_ranks(
            lambda: self.prompts.of_generation(generation), "another process could not ask for its prompts"
        )
        began = time.perf_counter()
        with during(Phase.GENERATE, f"while completions were generated after optimizer step {step}"):
            mine = self._completed(generation, step, prompts)
        self.timer.add("generate", began)
        began = time.perf_counter()
        graded = self.grades.graded(step, f"train-{step}-{generation}", mine)
        self.timer.add("grade", began)
        # Each rank has made an equal piece of the whole, in the order of the ranks.
        return graded if process_count() == 1 else gather_object(graded)

    def _completed(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """This rank's rollouts, not graded yet."""
        group = self.schedule.generations
        share = len(prompts) * group // process_count()
        places = [divmod(number, group) for number in range(process_rank() * share, (process_rank() + 1) * share)]
        asked = [(prompts[slot], sample, derive_seed(self.seed, generation, slot, sample)) for slot, sample in places]
        return completed(self.engine, asked, self.tokenizer, self.sampling, version)
