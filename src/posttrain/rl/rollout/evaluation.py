"""Evaluate on held-out prompts during training; two evaluations can be compared prompt by prompt."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object

from posttrain.base.files import atomic_write_text
from posttrain.base.processes import is_main_process, process_count, process_rank
from posttrain.errors import RunError
from posttrain.inference.engine import Sampling, derive_seed
from posttrain.rl.config import EvaluationConfig
from posttrain.rl.rollout.engines.open import completed
from posttrain.rl.rollout.grading import GradeSource, grade_all, on_all_ranks
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.rollout import Prompt, PromptSource, Rollout, rollout_means
from posttrain.train.memory import Phase, during

EVALUATIONS = "evaluations"
"""Name of the folder within a run directory."""


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
        if is_main_process():
            lines = "".join(json.dumps(each.as_dict(), ensure_ascii=False) + "\n" for each in graded)
            path = evaluation_file(self.folder, step)
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_text(path, lines.encode(errors="replace").decode())
        return {**_means(graded, step), "too_long_prompts": 1 - len(prompts) / self.count}

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


def evaluation_file(folder: Path, step: int) -> Path:
    """The file with the answers of the evaluation after `step` steps."""
    return folder / f"step-{step:06d}.jsonl"


def discard_evaluations(folder: Path, after_step: int) -> None:
    """Remove the evaluations after `after_step`, which a resumed run makes again."""
    for path in folder.glob("step-*.jsonl"):
        if int(path.stem.removeprefix("step-")) > after_step:
            path.unlink()


def _means(graded: Sequence[Rollout], step: int) -> dict[str, float]:
    rewards = [each.reward for each in graded if each.reward is not None]
    if not rewards:
        reason = next((each.result.reason for each in graded if each.result is not None), "all prompts are too long")
        raise RunError(f"none of the {len(graded)} held-out completions of step {step} has a reward: {reason}")
    return {
        "reward": statistics.fmean(rewards),
        **{name: mean for name, mean in sorted(rollout_means(graded).items()) if name.startswith("graders/")},
        "tokens": statistics.fmean(each.tokens for each in graded),
        "truncated": statistics.fmean(each.was_cut for each in graded),
        "ungraded": 1 - len(rewards) / len(graded),
    }
