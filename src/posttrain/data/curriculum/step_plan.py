"""The rows, micro-batches and counts of each optimizer step.

Everything here is a function of (curriculum, row lengths, step). All ranks compute the same plan, so counters and the
loss's normaliser need no communication, and a resumed run computes the plan of step k without replaying earlier steps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

from posttrain.base.processes import process_count
from posttrain.data.curriculum.curriculum import Curriculum, Draw
from posttrain.data.curriculum.micro_batches import MicroBatchSize, cut

T = TypeVar("T", covariant=True)


class PerRow(Protocol[T]):
    """One number per row."""

    def __getitem__(self, row: int, /) -> T: ...


@dataclass(frozen=True)
class RowSizes:
    """Per-row numbers of one data set, each of shape [rows]: lists, or arrays that may be memory-mapped.

    Attributes:
        lengths: tokens.
        trained_counts: tokens that carry loss.
        padded: tokens with the padding within a row, such as that of a pair to its longer side; None if it has none.
    """

    lengths: PerRow[int]
    trained_counts: PerRow[int]
    weights: PerRow[float]
    padded: PerRow[int] | None = None


@dataclass(frozen=True)
class StepPlan:
    """One optimizer step, over all ranks.

    Attributes:
        step: counted from 0.
        draws: one per slot, in slot order.
        micro_batches: the slots of each, longest row first; their number is a multiple of the number of ranks.
        tokens: tokens of all rows.
        trained_tokens: tokens that carry loss.
        computed_tokens: tokens including padding, if there is any.
        loss_weight: Σ row weight × trained tokens, the divisor of the step's summed loss.
    """

    step: int
    stage: str
    draws: tuple[Draw, ...]
    micro_batches: tuple[tuple[int, ...], ...]
    tokens: int
    trained_tokens: int
    computed_tokens: int
    loss_weight: float

    @property
    def order(self) -> tuple[int, ...]:
        """The slots, longest row first."""
        return tuple(slot for rows in self.micro_batches for slot in rows)


class StepPlanner:
    """Plan the steps of a curriculum.

    Micro-batches are formed by length within one step: the order does not change the step's gradient, which is a sum,
    and rows of similar length need little padding. The longest rows come first, so that a step that does not fit into
    memory fails at once.
    """

    def __init__(self, curriculum: Curriculum, sizes: Mapping[str, RowSizes], size: MicroBatchSize) -> None:
        self.curriculum = curriculum
        self._size = size
        self._sizes = sizes
        self.plan = lru_cache(maxsize=8)(self._plan)

    def _plan(self, step: int) -> StepPlan:
        draws = self.curriculum.step(step)
        lengths = [int(self._sizes[draw.dataset].lengths[draw.row]) for draw in draws]
        taken = lengths if self._size.padding_free else [self._padded(draw) for draw in draws]
        trained = [int(self._sizes[draw.dataset].trained_counts[draw.row]) for draw in draws]
        weights = [float(self._sizes[draw.dataset].weights[draw.row]) for draw in draws]
        order = sorted(range(len(draws)), key=lambda slot: (-lengths[slot], slot))
        micro_batches = cut(order, taken, self._size, multiple=process_count())
        return StepPlan(
            step=step,
            stage=draws[0].stage,
            draws=tuple(draws),
            micro_batches=tuple(micro_batches),
            tokens=sum(lengths),
            trained_tokens=sum(trained),
            computed_tokens=sum(self._size.computed([taken[slot] for slot in rows]) for rows in micro_batches),
            loss_weight=sum(weight * count for weight, count in zip(weights, trained, strict=True)),
        )

    def _padded(self, draw: Draw) -> int:
        sizes = self._sizes[draw.dataset]
        return int((sizes.lengths if sizes.padded is None else sizes.padded)[draw.row])
