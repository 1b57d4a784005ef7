"""The protocol between the training loop and a recipe.

`PlannedSteps` is for recipes whose rows a curriculum draws: SFT and DPO.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from posttrain.base.processes import process_count, process_rank
from posttrain.base.text import first_of
from posttrain.config.sections.datasets import PathConfig
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.curriculum.step_plan import StepPlan
from posttrain.data.readers.open import place_in
from posttrain.data.tokenized import TokenizedDataset
from posttrain.errors import ToolkitError
from posttrain.models.backend import LoadedModel
from posttrain.runs.resume import RunCounters
from posttrain.train.signals import StopRequest

Measure = Literal["loss", "reward"]
"""What evaluations are compared by: the lowest loss, or the highest reward, is the best."""


class UnavailableError(ToolkitError):
    """A recipe cannot get its batch or evaluation, e.g. because the server is down; no part of the step has run."""


class Evaluations(Protocol):
    """When to evaluate, and when to stop because there is no improvement."""

    @property
    def every(self) -> int: ...

    @property
    def at_start(self) -> bool: ...

    @property
    def patience(self) -> int | None: ...

    @property
    def min_improvement(self) -> float: ...


@dataclass(frozen=True)
class Evaluation:
    """A kind of evaluation during training.

    Attributes:
        measure: the value by which evaluations are compared.
        evaluate: evaluates after a number of steps; returns the values by name, with `measure`, and the facts to show.
            All ranks call it together.
    """

    when: Evaluations
    measure: Measure
    evaluate: Callable[[Any, int], tuple[dict[str, float], str]]

    def is_due(self, step: int, max_steps: int) -> bool:
        """Whether to evaluate after `step` steps."""
        if step == 0:
            return self.when.at_start
        return step % self.when.every == 0 or step >= max_steps


class GradedTasks(Protocol):
    """What is asked of the model in training besides the recipe's own evaluation."""

    @property
    def identity(self) -> str:
        """Changes with what is asked, how it is answered, and how it is graded."""
        ...

    def evaluation(self, loaded: LoadedModel, run: Path) -> Evaluation:
        """The evaluation of a model, which keeps its answers in the folder `run`."""
        ...


@dataclass(frozen=True)
class StepResult:
    """Result of an optimizer step.

    Attributes:
        step: number of the step, counted from 1.
        loss: sum over all micro-batches and ranks.
        grad_norm: gradient norm before clipping.
        seconds: time from getting the batch to the updated weights.
        router_loss: load-balancing loss of the routers, before its coefficient; None if it is not counted. `loss` is
            without it.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    seconds: float
    router_loss: float | None = None

    def numbers(self) -> dict[str, float | None]:
        """The fields that every step has in metrics.jsonl; a norm that overflowed in float16 is null."""
        norm = self.grad_norm if math.isfinite(self.grad_norm) else None
        routers = {} if self.router_loss is None else {"router_loss": self.router_loss}
        return {"loss": self.loss, **routers, "grad_norm": norm, "learning_rate": self.learning_rate}


class Recipe(Protocol):
    """What one kind of training adds to the loop: which rows make up a step, and the loss of a micro-batch."""

    max_steps: int
    measure: Measure

    def batch(self, step: int) -> Sequence[Any]:
        """This rank's micro-batches of optimizer step `step`, counted from 0; every rank has the same number."""
        ...

    def loss(self, model: Any, micro_batch: Any) -> torch.Tensor:
        """The micro-batch's part of the step's loss, shape []; the parts of all micro-batches and ranks add up to
        it."""
        ...

    def labels(self, micro_batch: Any) -> torch.Tensor:
        """The labels of the rows of a micro-batch, shape [rows, seq], -100 where there is none."""
        ...

    def count(self, result: StepResult, counters: RunCounters) -> tuple[dict[str, Any], str]:
        """Count the step, and return its line of metrics.jsonl and the facts to show.

        All ranks call it together.
        """
        ...

    def evaluate(self, model: Any, step: int) -> tuple[dict[str, float], str]:
        """Evaluate held-out rows after `step` steps; return the values by name, with `measure`, and the facts to show.

        All ranks call it together.
        """
        ...

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """What was trained in optimizer step `step`, counted from 0, whose loss or gradient is not finite.

        `broken` are the micro-batches whose loss is not finite, numbered over all ranks: i·ranks + rank.
        """
        ...

    def engine_facts(self) -> dict[str, Any]:
        """What the manifest says about the engine that the run uses; unless overridden, nothing."""
        return {}

    def heed(self, stop: StopRequest) -> None:
        """Learn of a request to stop while waiting for a batch; unless overridden, batches need no waiting."""

    def may_stop_after(self, step: int) -> bool:
        """Whether a run can be resumed after `step` steps."""
        return True

    def save(self, folder: Path | None, step: int, *, is_ending: bool) -> None:
        """Write what the recipe needs to go on after `step` steps into the checkpoint `folder`.

        Unless overridden, that is nothing. All ranks call it together; `folder` is None on all but the first.
        `is_ending`: the run is being stopped, so it should not take long.
        """


@dataclass(frozen=True)
class PlannedSteps:
    """The optimizer steps of a run.

    Attributes:
        plan: gives the plan of a step, counted from 0.
        place: gives the file and line of a row that was drawn.
    """

    plan: Callable[[int], StepPlan]
    place: Callable[[Draw], str]

    def micro_batches(self, step: int) -> list[list[Draw]]:
        """The rows of each micro-batch that this rank trains in a step; every rank has the same number."""
        return self._all_micro_batches(step)[process_rank() :: process_count()]

    def count(self, result: StepResult, counters: RunCounters) -> dict[str, Any]:
        """Count a step, and return its line of metrics.jsonl."""
        plan = self.plan(result.step - 1)
        counters.advance(plan, result.seconds)
        return {
            "step": result.step,
            "stage": plan.stage,
            "tokens": plan.tokens,
            "trained_tokens": plan.trained_tokens,
            "padding_share": round(1 - plan.tokens / plan.computed_tokens, 4),
            "total_tokens": counters.tokens,
            "order_hash": counters.order_hash,
            "seconds": round(result.seconds, 4),
            "tokens_per_second": round(plan.tokens / result.seconds, 1),
            **result.numbers(),
        }

    def trained_in(self, step: int, broken: Sequence[int]) -> str:
        """Which rows gave a step, counted from 0, a loss or gradient that is not finite.

        `broken` are the micro-batches whose loss is not finite, numbered over all ranks.
        """
        micro_batches = self._all_micro_batches(step)
        if 0 < len(broken) < len(micro_batches):
            rows = [draw for number in broken for draw in micro_batches[number]]
            return f"it comes from {self._named(rows)}: look at them, the step's other rows are fine"
        every = "every micro-batch is affected, so the cause may be the weights rather than a row; " if broken else ""
        return f"{every}the rows of the step: {self._named([draw for rows in micro_batches for draw in rows])}"

    def _all_micro_batches(self, step: int) -> list[list[Draw]]:
        plan = self.plan(step)
        return [[plan.draws[slot] for slot in rows] for rows in plan.micro_batches]

    def _named(self, rows: Sequence[Draw]) -> str:
        return first_of([self.place(draw) for draw in rows])


def step_facts(row: Mapping[str, Any]) -> str:
    """The facts to show for a step, from its line of metrics.jsonl."""
    return f"{row['tokens_per_second']:,.0f} tok/s  padding {row['padding_share']:.0%}"


def place_of(sources: Mapping[str, PathConfig], datasets: Mapping[str, TokenizedDataset]) -> Callable[[Draw], str]:
    """A function that names the place of a drawn row.

    The place is `file:line`, or data set and line if several files make up one data set.

    Args:
        sources: configs of the data sets, by their keys in the config.
    """

    def place(draw: Draw) -> str:
        key, line = f"datasets.{draw.dataset}", int(datasets[draw.dataset].lines[draw.row])
        return place_in(sources[key].path, line) if key in sources else f"{key} line {line}"

    return place
