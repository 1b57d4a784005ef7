"""The rows, micro-batches and counts of each optimizer step.

Everything here is a function of (curriculum, row lengths, step). All ranks compute the same plan, so counters and the
loss's normaliser need no communication, and a resumed run computes the plan of step k without replaying earlier steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

from posttrain.data.curriculum.curriculum import Curriculum, Draw

T = TypeVar("T", covariant=True)


class PerRow(Protocol[T]):
    """One number per row."""

    def __getitem__(self, row: int, /) -> T: ...


@dataclass(frozen=True)
class RowSizes:
    """Per-row numbers of one data set, each of shape [rows]: lists, or arrays that may be memory-mapped."""

    lengths: PerRow[int]
    trained_counts: PerRow[int]
    weights: PerRow[float]


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step, over all ranks.

    Attributes:
        step: counted from 0.
        draws: one per slot, in slot order.
        order: the slots, longest row first; every `micro_batch_size` consecutive ones form a micro-batch.
        tokens: tokens of all rows.
        trained_tokens: tokens that carry loss.
        computed_tokens: tokens including padding, if there is any: Σ over micro-batches of rows × longest row.
        loss_weight: Σ row weight × trained tokens, the divisor of the step's summed loss.
    """

    step: int
    stage: str
    draws: tuple[Draw, ...]
    order: tuple[int, ...]
    tokens: int
    trained_tokens: int
    computed_tokens: int
    loss_weight: float


class StepPlanner:
    """Plan the steps of a curriculum.

    Micro-batches are formed by length within one step: the order does not change the step's gradient, which is a sum,
    and rows of similar length need little padding. The longest rows come first, so that a step that does not fit into
    memory fails at once.
    """

    def __init__(
        self,
        curriculum: Curriculum,
        sizes: Mapping[str, RowSizes],
        micro_batch_size: int,
        *,
        padding_free: bool = False,
    ) -> None:
        self.curriculum = curriculum
        self.micro_batch_size = micro_batch_size
        self._padding_free = padding_free
        self._sizes = sizes
        self.plan = lru_cache(maxsize=8)(self._plan)

    def _plan(self, step: int) -> StepPlan:
        draws = self.curriculum.step(step)
        lengths = [int(self._sizes[draw.dataset].lengths[draw.row]) for draw in draws]
        trained = [int(self._sizes[draw.dataset].trained_counts[draw.row]) for draw in draws]
        weights = [float(self._sizes[draw.dataset].weights[draw.row]) for draw in draws]
        order = sorted(range(len(draws)), key=lambda slot: (-lengths[slot], slot))
        width = self.micro_batch_size
        # `order` sorts by descending length, so the first row of each micro-batch is its longest.
        padded = sum(width * lengths[order[first]] for first in range(0, len(order), width))
        return StepPlan(
            step=step,
            stage=draws[0].stage,
            draws=tuple(draws),
            order=tuple(order),
            tokens=sum(lengths),
            trained_tokens=sum(trained),
            computed_tokens=sum(lengths) if self._padding_free else padded,
            loss_weight=sum(weight * count for weight, count in zip(weights, trained, strict=True)),
        )
