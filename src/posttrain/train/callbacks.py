"""The trainer's callbacks: counters and metrics, checkpoints, early stopping."""

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState

from posttrain.runs import checkpoints
from posttrain.runs.counters import RunCounters
from posttrain.runs.directory import RunDirectory
from posttrain.train.broken_steps import TrainedRows, last_checkpoint, require_finite
from posttrain.train.schedule import ScheduleCallback
from posttrain.train.step_log import StepLog

if TYPE_CHECKING:
    from posttrain.config.sections.run import RunConfig


class Patience(Protocol):
    """When to stop early: after so many evaluations without a better loss, or never."""

    @property
    def patience(self) -> int | None: ...

    @property
    def min_improvement(self) -> float: ...


def training_callbacks(
    run: RunDirectory,
    counters: RunCounters,
    settings: "RunConfig",
    validation: Patience | None,
    metrics: "MetricsCallback",
) -> list[TrainerCallback]:
    """Early stopping where `validation` asks for it, metrics, and checkpoints, of which the lowest loss is the best."""
    stopping: list[TrainerCallback] = []
    if validation is not None and validation.patience is not None:
        stopping.append(EarlyStoppingCallback(validation.patience, validation.min_improvement))
    return [
        *stopping,  # first, so that the checkpoint callback sees its decision to stop
        ScheduleCallback(),
        metrics,
        CheckpointCallback(run, counters, settings.keep_checkpoints, best="loss"),
    ]


class MetricsCallback(TrainerCallback):
    """Counts each step, writes it to metrics.jsonl and shows it."""

    def __init__(
        self,
        log: StepLog,
        counters: RunCounters,
        rows: TrainedRows,
        *,
        measured: Sequence[str] = (),
        shown: str | None = None,
    ) -> None:
        """`measured`: what the trainer logs of a step besides loss, gradient norm and learning rate. `shown`: the one
        of them that is shown beside the loss, also of an evaluation."""
        self._written = ("loss", "grad_norm", "learning_rate", *measured)
        self._shown = shown
        self._log = log
        self._counters = counters
        self._rows = rows
        self._started = 0.0
        self._row: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._log.begin(self._counters.step)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._rows.losses.begin()
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._started
        plan = self._rows.plan(state.global_step - 1)
        self._counters.advance(plan, seconds)
        self._row = {
            "step": state.global_step,
            "stage": plan.stage,
            "tokens": plan.tokens,
            "trained_tokens": plan.trained_tokens,
            "padding_share": round(1 - plan.tokens / plan.computed_tokens, 4),
            "total_tokens": self._counters.tokens,
            "order_hash": self._counters.order_hash,
            "seconds": round(seconds, 4),
            "tokens_per_second": round(plan.tokens / seconds, 1),
        }

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        if not logs:
            return
        if "loss" in logs:
            self._require_finite(args, state, logs)
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            row = {
                **self._row,
                **{key: logs[key] if math.isfinite(logs[key]) else None for key in self._written if key in logs},
            }
            facts = f"{row['tokens_per_second']:,.0f} tok/s  padding {row['padding_share']:.0%}"
            self._log.write(row, f"loss {row['loss']:.4f}  {self._also_shown(row, '', '  ')}{facts}")
        elif "eval_loss" in logs:
            values = {key: value for key, value in logs.items() if key.startswith("eval_")}
            also = self._also_shown(logs, "eval_", "")
            facts = f"validation loss {logs['eval_loss']:.4f}{', ' if also else ''}{also}"
            self._log.write_evaluation(state.global_step, values, facts)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._log.end()

    def _require_finite(self, args: Any, state: TrainerState, logs: dict[str, float]) -> None:
        def told() -> list[str]:
            rows = self._rows.told(state.global_step - 1, args.per_device_train_batch_size)
            return [rows, last_checkpoint(self._log.run)]

        require_finite(logs, state.global_step, scaled=args.fp16, told=told)

    def _also_shown(self, values: dict[str, Any], prefix: str, end: str) -> str:
        value = values.get(f"{prefix}{self._shown}")
        return "" if self._shown is None or value is None else f"{self._shown.replace('_', ' ')} {value:.3f}{end}"


class CheckpointCallback(TrainerCallback):
    """Publishes the checkpoints that the trainer wrote, marks the best and removes old ones."""

    def __init__(self, run: RunDirectory, counters: RunCounters, keep: int, *, best: Literal["loss", "reward"]) -> None:
        """`best`: whether the lowest validation loss or the highest held-out reward marks the best checkpoint."""
        self._run = run
        self._best_metric = f"eval_{best}"
        self._sign = -1 if best == "loss" else 1
        self._counters = counters
        self._keep = keep
        self._best_step: int | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            checkpoints.rotate(self._run, self._keep)  # a kill may have come before it

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        # state.best_metric is updated right after this call, so it still holds the best of the earlier ones; the first
        # of them, be it that it is no number.
        if state.best_metric is not None and not math.isfinite(state.best_metric):
            state.best_metric = None
        if metrics and self._is_best(metrics[self._best_metric], state.best_metric):
            self._best_step = state.global_step
            control.should_save = True
        if control.should_training_stop:  # early stopping, which is asked before this callback
            control.should_save = True

    def _is_best(self, value: float, best: float | None) -> bool:
        return math.isfinite(value) and (best is None or self._sign * value > self._sign * best)

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        _barrier()  # every rank has written its random state
        if state.is_world_process_zero:
            is_best = self._best_step == state.global_step
            kept = {"counters": self._counters.as_dict(), "is_best": is_best}
            published = checkpoints.publish(self._run, state.global_step, kept)
            if is_best:
                checkpoints.mark_best(self._run, published)
            checkpoints.rotate(self._run, self._keep)
        _barrier()


def _barrier() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
