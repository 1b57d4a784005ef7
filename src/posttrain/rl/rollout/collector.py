"""Make this rank's share of a generation: ask for prompts, complete them, have the completions graded."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.base.processes import process_count, process_rank
from posttrain.inference.engine import RolloutEngine, Sampling, derive_seed
from posttrain.rl.rollout.engines import completed
from posttrain.rl.rollout.grading import GradeSource, grade_all
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.memory import Phase, during


@dataclass(frozen=True)
class Collector:
    """Makes rollouts.

    Attributes:
        sampling: how an iteration's completions are sampled.
        seed: the run's seed; each completion's seed is derived from it.
    """

    schedule: RolloutSchedule
    prompts: PromptSource
    engine: RolloutEngine
    grades: GradeSource
    tokenizer: Any
    sampling: Callable[[int], Sampling]
    seed: int

    def complete(self, generation: int, version: int) -> list[Rollout]:
        """This rank's rollouts of a generation, ungraded, those of one prompt adjacent.

        Args:
            version: number of optimizer steps behind the engine's weights.

        Raises:
            ServerError: the dataserver gives no prompts, or the engine is lost.
        """
        prompts = self.prompts.of_generation(generation)
        with during(Phase.GENERATE, f"while completions were generated after optimizer step {version}"):
            return self._completed(generation, version, prompts)

    def grade(self, generation: int, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """The rollouts with their results; ServerError if they cannot be graded."""
        iteration = self.schedule.iteration_of(generation)
        return grade_all(self.grades, iteration, f"train-{iteration}-{generation}", rollouts)

    def _completed(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        group = self.schedule.generations
        share = len(prompts) * group // process_count()
        places = [divmod(number, group) for number in range(process_rank() * share, (process_rank() + 1) * share)]
        asked = [(prompts[slot], sample, derive_seed(self.seed, generation, slot, sample)) for slot, sample in places]
        sampling = self.sampling(self.schedule.iteration_of(generation))
        return completed(self.engine.complete, asked, self.tokenizer, sampling, version)
