"""Make this rank's share of a generation: ask for prompts, complete them, have the completions graded."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from posttrain.base.processes import share_of_rank
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    RolloutEngine,
    Sampling,
    derive_seed,
)
from posttrain.rl.rollout.engines.open import completed
from posttrain.rl.rollout.grading import GradeSource, grade_all
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.memory import Phase, during


@dataclass(frozen=True)
class Collector:
    """Makes rollouts.

    Attributes:
        sampling: how an iteration's completions are sampled.
        seed: the run's seed; each completion's seed is derived from it.
        finished: the completions that have ended so far, by generation.
    """

    schedule: RolloutSchedule
    prompts: PromptSource
    engine: RolloutEngine
    grades: GradeSource
    tokenizer: Any
    sampling: Callable[[int], Sampling]
    seed: int
    finished: defaultdict[int, FinishedCompletions] = field(default_factory=lambda: defaultdict(FinishedCompletions))

    def complete(self, generation: int, version: int, prompts: Sequence[Prompt]) -> list[Rollout]:
        """This rank's share of the completions of `prompts`, ungraded, those of one prompt adjacent.

        Args:
            version: number of optimizer steps behind the engine's weights.

        Raises:
            ServerError: the engine is lost.
        """
        mine = share_of_rank(len(prompts) * self.schedule.generations)
        numbers = (divmod(number, self.schedule.generations) for number in mine)
        asked = [(prompts[index], sample, self._seed(generation, prompts[index], sample)) for index, sample in numbers]
        sampling = self.sampling(self.schedule.iteration_of(generation))
        generate = partial(self.generate, generation=generation, version=version)
        return completed(generate, asked, self.tokenizer, sampling, version)

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: Sampling, generation: int, version: int
    ) -> dict[Key, Completion]:
        """The engine's completions, of which it makes those that are not in `finished`; ServerError if it is lost."""
        with during(Phase.GENERATE, f"while completions were generated after optimizer step {version}"):
            return self.engine.complete(requests, sampling, self.finished[generation])

    def without_displaced(
        self, generation: int, prompts: Sequence[Prompt], candidates: Candidates | None
    ) -> tuple[list[Prompt], list[Rollout]]:
        """The prompts of a generation to complete, and rollouts without tokens for those that replay displaces."""
        displaced = {} if candidates is None else candidates.displaced([each.dataset for each in prompts])
        sampling = self.sampling(self.schedule.iteration_of(generation))
        empty = [
            Rollout.of(prompt, sample, None, self.tokenizer, sampling, version=0)
            for prompt in prompts
            if prompt.slot in displaced
            for sample in range(self.schedule.generations)
        ]
        return [each for each in prompts if each.slot not in displaced], empty

    def grade(self, generation: int, rollouts: Sequence[Rollout], number: int = 0) -> list[Rollout]:
        """The rollouts of round `number` with their results; ServerError if they cannot be graded."""
        graded = []
        for iteration, asked in groupby(rollouts, key=lambda each: each.prompt.iteration):
            label = f"train-{iteration}-{generation}" + (f"-{number}" if number else "")
            graded += grade_all(self.grades, iteration, label, list(asked))
        return graded

    def _seed(self, generation: int, prompt: Prompt, sample: int) -> int:
        of_substitute = (prompt.attempt,) if prompt.attempt else ()
        return derive_seed(self.seed, generation, prompt.slot, sample, *of_substitute)
