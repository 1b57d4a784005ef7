"""A tiny model and a recipe of a few tokens, for tests of the training loop itself."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posttrain.base.console import TrainingProgress
from posttrain.config.sections.datasets import ValidationConfig
from posttrain.config.sections.run import RunConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.models.backend import LoadedModel
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import ResumePoint, RunCounters
from posttrain.train.loop import Loop
from posttrain.train.parallel.ranks import connect
from posttrain.train.recipe import Evaluation, Measure, Recipe, StepResult, UnavailableError
from posttrain.train.record.step_log import StepLog
from posttrain.train.state import TrainState
from posttrain.train.watchdogs import Watch

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class TokenRecipe(Recipe):
    """Learns to say token 5 after token 3, in two micro-batches a step.

    Attributes:
        signals: (step, signal) pairs sent to this process; steps count from 1, and 0 is an evaluation at the start.
        in_evaluation: send them during the evaluations after these steps, not during the steps.
        losses: results of the evaluations, in order; the model's actual loss when there are none left.
        away_at: the step, counted from 0, whose batch is unavailable.
    """

    max_steps: int = 6
    measure: Measure = "loss"
    signals: Sequence[tuple[int, signal.Signals]] = ()
    in_evaluation: bool = False
    losses: list[float] = field(default_factory=list)
    away_at: int | None = None
    resumable_every: int = 1
    noise: bool = False
    drawn: list[float] = field(default_factory=list)

    def batch(self, step: int) -> list[torch.Tensor]:
        self._send(step + 1, evaluating=False)
        if step == self.away_at:
            raise UnavailableError("nobody is there")
        self.drawn.append(float(torch.rand(())))
        return [torch.tensor([[3]]), torch.tensor([[3, 3]])]

    def loss(self, model: Any, micro_batch: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=micro_batch, use_cache=False).logits[:, -1].float()
        return -torch.log_softmax(logits, dim=-1)[:, 5].mean() / 2

    def labels(self, micro_batch: torch.Tensor) -> torch.Tensor:
        return torch.full_like(micro_batch, 5)

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        counters.count(2, 3, 2, result.seconds, counters.order_hash)
        return {"step": result.step, "stage": "only", **result.numbers()}, "a fact"

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        self._send(step, evaluating=True)
        if self.losses:
            return {"loss": self.losses.pop(0)}, "a measure"
        with torch.no_grad():
            return {"loss": 2 * float(self.loss(model, torch.tensor([[3]])))}, "a measure"

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        return f"step {step}, micro-batches {list(broken)}"

    def may_stop_after(self, step: int) -> bool:
        return step % self.resumable_every == 0

    def _send(self, step: int, *, evaluating: bool) -> None:
        if evaluating == self.in_evaluation:
            for wanted, number in self.signals:
                if wanted == step:
                    os.kill(os.getpid(), number)
            self.signals = [each for each in self.signals if each[0] != step]


@dataclass
class Trained:
    """A finished or stopped training."""

    run: RunDirectory
    state: TrainState
    recipe: TokenRecipe
    training: TrainingConfig

    @property
    def saved(self) -> list[int]:
        return sorted(int(path.name.removeprefix("checkpoint-")) for path in self.run.path.glob("checkpoint-*"))


def make(
    folder: Path,
    model: Path,
    recipe: TokenRecipe,
    point: ResumePoint | None = None,
    training: TrainingConfig | None = None,
) -> Trained:
    """Full fine-tuning that is about to start, at `point` or from the beginning."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = LoadedModel(
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train(),
        AutoTokenizer.from_pretrained(model),
        torch.device("cpu"),
        torch.float32,
        (),
    )
    run = RunDirectory(folder)
    folder.mkdir(parents=True, exist_ok=True)
    accelerator: Accelerator = connect()
    training = training or settings()
    state = TrainState.build(accelerator, loaded, training, point or ResumePoint(None, RunCounters()))
    return Trained(run, state, recipe, training)


def settings() -> TrainingConfig:
    return TrainingConfig(rows_per_step=2, micro_batch_size=1, learning_rate=1e-2, optimizer="sgd")


def train(
    trained: Trained, *, save_every: int = 100, keep: int = 9, validation: ValidationConfig | None = None
) -> Trained:
    """Train until the end or until something stops it."""
    log = StepLog(trained.run, TrainingProgress(trained.recipe.max_steps), Watch([]))
    run = RunConfig(save_every=save_every, keep_checkpoints=keep)
    evaluations = (
        [] if validation is None else [Evaluation(validation, trained.recipe.measure, trained.recipe.evaluate)]
    )
    Loop(trained.recipe, trained.state, trained.run, log, trained.training, run, evaluations).train()
    return trained
