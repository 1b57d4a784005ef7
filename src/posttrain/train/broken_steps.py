"""A step whose loss or gradient is not finite: stop, and say which rows it was and what is left."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import distributed

from posttrain.base.processes import process_count, process_rank
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlan
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import RunError
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory

# How many rows of a step are named.
_NAMED = 5


def require_finite(
    logs: dict[str, float], step: int, *, scaled: bool = False, told: Callable[[], Sequence[str]] = tuple
) -> None:
    """Stop before a broken step is saved: what is on disk stays the last good state.

    Args:
        scaled: the loss is scaled for float16. Its gradients may overflow while the scale is found; the trainer passes
            over such a step and lowers the scale.
        told: more lines of the message. All ranks call it, since all have the same numbers.

    Raises:
        RunError: the loss or the norm of the gradient is not finite.
    """
    for name in ("loss",) if scaled else ("loss", "grad_norm"):
        if not math.isfinite(logs.get(name, 0.0)):
            raise RunError(
                "\n".join(
                    [
                        f"{name} is {logs[name]} at step {step}, so training stopped; earlier checkpoints are as they "
                        "were. Lower training.learning_rate, or keep training.max_grad_norm above 0"
                        + (", or set model.dtype: bfloat16 or float32" if scaled else ""),
                        *told(),
                    ]
                )
            )


def last_checkpoint(run: RunDirectory) -> str:
    """From where training can go on, as a line of a message."""
    latest = latest_checkpoint(run)
    if latest is None:
        return "no checkpoint had been written"
    return (
        f"the last checkpoint is {latest.path}: --resume goes on from it, also with another training.learning_rate or "
        "training.max_grad_norm"
    )


def some_of(names: Sequence[str]) -> str:
    """The first few of them."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def place_of(sources: Mapping[str, DatasetConfig], datasets: Mapping[str, TokenizedDataset]) -> Callable[[Draw], str]:
    """The place of a row that was drawn: `file:line`, or data set and line where several files make one data set.

    Args:
        sources: of the data sets, by their keys in the config.
    """

    def place(draw: Draw) -> str:
        key, line = f"datasets.{draw.dataset}", int(datasets[draw.dataset].lines[draw.row])
        return f"{sources[key].path}:{line}" if key in sources else f"{key} line {line}"

    return place


class MicroBatchLosses:
    """The losses of the micro-batches of the optimizer step in progress, on this rank."""

    def __init__(self) -> None:
        self._losses: list[torch.Tensor] = []

    def begin(self) -> None:
        """A new step begins."""
        self._losses.clear()

    def kept(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss of the next micro-batch, shape []; it is returned as it is."""
        self._losses.append(loss.detach())
        return loss

    def broken(self) -> list[int]:
        """Which micro-batches of the step, over all ranks, have a loss that is not finite; all ranks must ask."""
        count = process_count()
        mine = [
            number * count + process_rank() for number, loss in enumerate(self._losses) if not bool(loss.isfinite())
        ]
        found: list[list[int]] = [mine] * count
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_gather_object(found, mine)
        return sorted({number for each in found for number in each})


@dataclass(frozen=True)
class TrainedRows:
    """The rows of a run's steps.

    Attributes:
        plan: of a step, counted from 0.
        place: the file and line of a row that was drawn.
        losses: of the step in progress; the trainer keeps them there.
    """

    plan: Callable[[int], StepPlan]
    place: Callable[[Draw], str]
    losses: MicroBatchLosses = field(default_factory=MicroBatchLosses)

    def told(self, step: int, micro_batch_size: int) -> str:
        """Which rows gave a step, counted from 0, a loss or gradient that is not finite; all ranks must ask."""
        order, broken = self.plan(step).order, self.losses.broken()
        micro_batches = len(order) // micro_batch_size
        if 0 < len(broken) < micro_batches:
            slots = [slot for number in broken for slot in order[number * micro_batch_size :][:micro_batch_size]]
            return f"it comes from {self._named(step, slots)}: look at them, the step's other rows are fine"
        every = "each micro-batch has it, so it may be the weights and no row; " if micro_batches == len(broken) else ""
        return f"{every}the rows of the step: {self._named(step, order)}"

    def _named(self, step: int, slots: Sequence[int]) -> str:
        return some_of([self.place(self.plan(step).draws[slot]) for slot in slots])
