"""What a kind of training has to say to the loop: its batches, its loss, and its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from posttrain.errors import ToolkitError
from posttrain.runs.resume import RunCounters

Measure = Literal["loss", "reward"]
"""By which evaluations are compared: the lowest loss, or the highest reward, is the best."""


class UnavailableError(ToolkitError):
    """A recipe cannot have its batch or evaluation, as where a server is away; nothing of the step was done."""


class Evaluations(Protocol):
    """When to evaluate, and when to stop because nothing gets better."""

    @property
    def every(self) -> int: ...

    @property
    def at_start(self) -> bool: ...

    @property
    def patience(self) -> int | None: ...

    @property
    def min_improvement(self) -> float: ...


@dataclass(frozen=True)
class StepResult:
    """What came of an optimizer step.

    Attributes:
        step: its number, counted from 1.
        loss: over all micro-batches and ranks.
        grad_norm: before clipping.
        seconds: from its batch to the changed weights.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    seconds: float

    def numbers(self) -> dict[str, float | None]:
        """What metrics.jsonl says of every step; null for a gradient that overflowed in float16."""
        norm = self.grad_norm if math.isfinite(self.grad_norm) else None
        return {"loss": self.loss, "grad_norm": norm, "learning_rate": self.learning_rate}


class Recipe(Protocol):
    """What one kind of training adds to the loop: which rows make up a step, and the loss of a micro-batch."""

    max_steps: int
    measure: Measure

    def batch(self, step: int) -> Sequence[Any]:
        """This rank's micro-batches of optimizer step `step`, counted from 0; every rank has as many."""
        ...

    def loss(self, model: Any, micro_batch: Any) -> torch.Tensor:
        """The micro-batch's part of the step's loss, shape []: those of all micro-batches and ranks add up to it."""
        ...

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        """Count the step, and tell of it: its line of metrics.jsonl, and the facts that a person watches.

        All ranks call it together.
        """
        ...

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Measure held-out rows after `step` steps: the numbers by name, `measure` among them, and the facts to show.

        All ranks call it together.
        """
        ...

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """What was trained in optimizer step `step`, counted from 0, whose loss or gradient is not finite.

        `broken` are the micro-batches that have such a loss, numbered over all ranks: i·ranks + rank.
        """
        ...

    def may_stop_after(self, step: int) -> bool:
        """Whether a run can be resumed after so many steps."""
        ...
