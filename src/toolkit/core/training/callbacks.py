"""The trainer's callbacks: counters and metrics, checkpoints, early stopping."""

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState

from toolkit.core.runs import checkpoints
from toolkit.core.runs.counters import RunCounters
from toolkit.core.runs.directory import RunDirectory
from toolkit.core.runs.metrics import append_metrics
from toolkit.core.runs.progress import TrainingProgress
from toolkit.core.step_plan import StepPlan
from toolkit.errors import RunError

if TYPE_CHECKING:
    from toolkit.core.config.run import RunConfig


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
        metrics,
        CheckpointCallback(run, counters, settings.keep_checkpoints, best="loss"),
    ]


class MetricsCallback(TrainerCallback):
    """Counts each step, writes it to metrics.jsonl and shows it."""

    def __init__(
        self,
        run: RunDirectory,
        counters: RunCounters,
        plan: Callable[[int], StepPlan],
        progress: TrainingProgress,
        *,
        measured: Sequence[str] = (),
        shown: str | None = None,
    ) -> None:
        """`measured`: what the trainer logs of a step besides loss, gradient norm and learning rate. `shown`: the one
        of them that is shown beside the loss, also of an evaluation."""
        self._written = ("loss", "grad_norm", "learning_rate", *measured)
        self._shown = shown
        self._run = run
        self._counters = counters
        self._plan = plan
        self._progress = progress
        self._started = 0.0
        self._row: dict[str, Any] = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._progress.start(self._counters.step)

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        seconds = time.perf_counter() - self._started
        plan = self._plan(state.global_step - 1)
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
        if not logs or not state.is_world_process_zero:
            return
        if "loss" in logs:
            require_finite(logs, state.global_step, scaled=args.fp16)
            row = {
                **self._row,
                **{key: logs[key] if math.isfinite(logs[key]) else None for key in self._written if key in logs},
            }
            append_metrics(self._run.metrics, row)
            facts = f"{row['tokens_per_second']:,.0f} tok/s  padding {row['padding_share']:.0%}"
            self._progress.step(row, f"loss {row['loss']:.4f}  {self._also_shown(row, '', '  ')}{facts}")
        elif "eval_loss" in logs:
            values = {key: value for key, value in logs.items() if key.startswith("eval_")}
            append_metrics(self._run.metrics, {"step": state.global_step, **values})
            also = self._also_shown(logs, "eval_", "")
            self._progress.say(
                f"step {state.global_step}: validation loss {logs['eval_loss']:.4f}{', ' if also else ''}{also}"
            )

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._progress.stop()

    def _also_shown(self, values: dict[str, Any], prefix: str, end: str) -> str:
        value = values.get(f"{prefix}{self._shown}")
        return "" if self._shown is None or value is None else f"{self._shown.replace('_', ' ')} {value:.3f}{end}"


def require_finite(logs: dict[str, float], step: int, *, scaled: bool = False) -> None:
    """Stop before a broken step is saved: what is on disk stays the last good state.

    `scaled`: the loss is scaled for float16. Its gradients may overflow while the scale is found; the trainer passes
    over such a step and lowers the scale.
    """
    for name in ("loss",) if scaled else ("loss", "grad_norm"):
        if not math.isfinite(logs.get(name, 0.0)):
            raise RunError(
                f"{name} is {logs[name]} at step {step}, so training stopped; earlier checkpoints are as they were. "
                "Lower training.learning_rate, or keep training.max_grad_norm above 0"
            )


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

    def on_evaluate(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        # state.best_metric is updated right after this call, so it still holds the best of the earlier ones.
        if metrics and self._is_best(metrics[self._best_metric], state.best_metric):
            self._best_step = state.global_step
            control.should_save = True
        if control.should_training_stop:  # early stopping, which is asked before this callback
            control.should_save = True

    def _is_best(self, value: float, best: float | None) -> bool:
        return best is None or self._sign * value > self._sign * best

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        _barrier()  # every rank has written its random state
        if state.is_world_process_zero:
            published = checkpoints.publish(self._run, state.global_step, {"counters": self._counters.as_dict()})
            if self._best_step == state.global_step:
                checkpoints.mark_best(self._run, published)
            checkpoints.rotate(self._run, self._keep)
        _barrier()


def _barrier() -> None:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
