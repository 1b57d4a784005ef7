"""Training state in a checkpoint: weights, optimizer, counters and evaluations."""

import math
import random
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from posttrain.base.processes import is_main_process, process_rank
from posttrain.config.sections.training import TrainingConfig
from posttrain.models.backend import LoadedModel
from posttrain.models.weights.checkpoint import load_trained_weights, save_trained_weights
from posttrain.models.weights.sharding import takes_part
from posttrain.runs import checkpoints
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import ResumePoint, RunCounters
from posttrain.train.optim.averages import Averages, open_averages
from posttrain.train.optim.optimizer import load_states, make_optimizers
from posttrain.train.optim.saved_states import read_states, save_states
from posttrain.train.recipe import Measure, Recipe


@dataclass
class Progress:
    """Best evaluation of a run so far.

    Attributes:
        best: the best value measured; None if there is none yet.
        since_best: evaluations since the last one that improved by enough.
    """

    best: float | None = None
    since_best: int = 0

    def measured(self, value: float, measure: Measure, min_improvement: float) -> bool:
        """Record an evaluation; return whether it is the best so far, which a non-finite one never is."""
        gain = math.inf
        if self.best is not None:
            gain = self.best - value if measure == "loss" else value - self.best
        is_best = math.isfinite(value) and gain > 0
        self.since_best = 0 if is_best and gain > min_improvement else self.since_best + 1
        if is_best:
            self.best = value
        return is_best


@dataclass
class TrainState:
    """A run between two optimizer steps.

    Attributes:
        model: the model to call in training: `loaded.model`, or its wrapper that connects it with the other ranks.
        optimizers: one, or several that have some of the weights each.
        scaler: scales the loss in float16; disabled in other dtypes.
        averages: the weights that are exported, if they are not those that are trained, or another average.
    """

    accelerator: Accelerator
    loaded: LoadedModel
    model: Any
    optimizers: list[torch.optim.Optimizer]
    scaler: torch.amp.GradScaler
    counters: RunCounters
    averages: Averages
    progress: Progress = field(default_factory=Progress)

    @classmethod
    def build(
        cls, accelerator: Accelerator, loaded: LoadedModel, training: TrainingConfig, point: ResumePoint
    ) -> "TrainState":
        """The state at `point`: that of its checkpoint, or the initial one.

        Raises:
            ModelError: the checkpoint's weights do not fit the model, or it holds more than tensors and numbers.
            ConfigError: as `make_optimizers` and `open_averages`.
        """
        if point.checkpoint is not None:
            load_trained_weights(loaded.model, point.checkpoint)
        model = loaded.model if loaded.sharded else accelerator.prepare_model(loaded.model)
        scaler = torch.amp.GradScaler(loaded.device.type, enabled=loaded.compute_dtype is torch.float16)
        optimizers = make_optimizers(loaded.model, training)
        averages = open_averages(loaded.model, optimizers, training.ema, point.checkpoint)
        state = cls(accelerator, loaded, model, optimizers, scaler, point.counters, averages)
        if point.checkpoint is not None:
            state._restore(point.checkpoint, training)
        return state

    def save(
        self,
        run: RunDirectory,
        recipe: Recipe,
        *,
        keep: int,
        spared: Collection[int] = (),
        is_best: bool = False,
        is_ending: bool = False,
    ) -> None:
        """Write a checkpoint; all ranks call it together, and the main process writes.

        Args:
            keep: how many of the newest checkpoints to keep; the best one is kept besides.
            spared: steps of others that are still needed.
            is_ending: the run is being stopped.
        """
        self.accelerator.wait_for_everyone()
        step, unfinished = self.counters.step, run.trainer_private / f"checkpoint-{self.counters.step}"
        if is_main_process():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        folder = unfinished if is_main_process() else None
        recipe.save(folder, step, is_ending=is_ending)
        if takes_part(self.loaded.model):
            with self.averages.exported():
                save_trained_weights(self.loaded, unfinished)
            self.averages.save(folder)
            save_states(self.optimizers, unfinished)
        self.accelerator.wait_for_everyone()
        if folder is not None:
            published = checkpoints.publish(
                run,
                step,
                {
                    "counters": self.counters.as_dict(),
                    "progress": asdict(self.progress),
                    "scaler": self.scaler.state_dict(),
                    "is_best": is_best,
                },
            )
            if is_best:
                checkpoints.mark_best(run, published)
            checkpoints.rotate(run, keep, spared)
        self.accelerator.wait_for_everyone()

    def _restore(self, checkpoint: Path, training: TrainingConfig) -> None:
        states = read_states(self.optimizers, checkpoint)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            load_states(optimizer, state, training)
        kept = checkpoints.read_state(checkpoint)
        self.progress = Progress(**kept["progress"])
        self.scaler.load_state_dict(kept["scaler"])


def seed_step(seed: int, step: int) -> None:
    """Seed all random generators of this rank for an optimizer step.

    The seed depends on the run's seed, the step and the rank, so that checkpoints store no generator states, and a step
    repeated after a failure draws the same numbers.
    """
    digest = blake2b(f"{seed}:{step}:{process_rank()}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big")
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)
