"""Evaluate on held-out prompts during training; two evaluations can be compared prompt by prompt."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from posttrain.base.processes import is_main_process, process_count, process_rank
from posttrain.inference.engine import Sampling, derive_seed
from posttrain.rl.config import EvaluationConfig
from posttrain.rl.rollout.engines.open import completed
from posttrain.rl.rollout.grading import GradeSource, grade_all, on_all_ranks
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout
from posttrain.train.evaluate import answer_means, keep_answers
from posttrain.train.memory import Phase, during


@dataclass(frozen=True)
class Evaluator:
    """Completes the held-out prompts and has the answers graded; each rank takes a share.

    Attributes:
        count: number of held-out prompts, including those that are too long.
        folder: where each evaluation's answers are kept.
    """

    config: EvaluationConfig
    prompts: PromptSource
    count: int
    pipeline: RolloutPipeline
    tokenizer: Any
    grades: GradeSource
    folder: Path

    def evaluate(self, step: int) -> dict[str, float]:
        """Means over the held-out prompts: reward, each grader's score, length, and shares of what went wrong.

        Raises:
            UnavailableError: the dataserver gives no prompts or no results.
            RunError: no completion has a reward.
        """
        self.pipeline.publish(step)
        with during(Phase.GENERATE, f"while held-out prompts were answered after optimizer step {step}"):
            # Apart, because the ranks may have to ask the engine together.
            prompts = on_all_ranks(self._prompts)
            mine = on_all_ranks(lambda: self._graded(prompts, step))
        graded = mine if process_count() == 1 else sorted(gather_object(mine), key=lambda each: each.prompt.slot)
        lines = [each.as_dict() for each in graded]
        if is_main_process():
            keep_answers(self.folder, step, lines)
        means = answer_means(lines, f"held-out completions of step {step}")
        return {**means, "too_long_prompts": 1 - len(prompts) / self.count}

    def _prompts(self) -> list[Prompt]:
        """The prompts that all ranks complete together."""
        return [each for each in self.prompts.held_out(self.count) if not each.is_too_long]

    def _graded(self, prompts: Sequence[Prompt], step: int) -> list[Rollout]:
        """This rank's graded answers."""
        mine = prompts[process_rank() :: process_count()]
        return grade_all(self.grades, step, f"eval-{step}", self._answers(mine, step))

    def _answers(self, prompts: Sequence[Prompt], step: int) -> list[Rollout]:
        asked = [
            (prompt, number, derive_seed(self.config.seed, prompt.slot, number))
            for prompt in prompts
            for number in range(self.config.samples)
        ]
        return completed(partial(self.pipeline.complete, step), asked, self.tokenizer, Sampling.of(self.config), step)
