"""The steps of a run whose rows a curriculum draws: this rank's micro-batches, the counters, and the rows by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.base.processes import process_count, process_rank
from posttrain.base.text import first_of
from posttrain.config.sections.datasets import DatasetConfig
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlan
from posttrain.data.tokenized import TokenizedDataset
from posttrain.runs.resume import RunCounters
from posttrain.train.recipe import StepResult


@dataclass(frozen=True)
class PlannedSteps:
    """The optimizer steps of a run.

    Attributes:
        plan: of a step, counted from 0.
        place: the file and line of a row that was drawn.
    """

    plan: Callable[[int], StepPlan]
    place: Callable[[Draw], str]
    micro_batch_size: int

    def micro_batches(self, step: int) -> list[list[Draw]]:
        """The rows of each micro-batch that this rank trains in a step; every rank has as many."""
        return self._all_micro_batches(step)[process_rank() :: process_count()]

    def count(self, result: StepResult, counters: RunCounters) -> dict[str, Any]:
        """Count a step, and give what its line of metrics.jsonl says of it."""
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

        `broken` are the micro-batches with such a loss, numbered over all ranks.
        """
        micro_batches = self._all_micro_batches(step)
        if 0 < len(broken) < len(micro_batches):
            rows = [draw for number in broken for draw in micro_batches[number]]
            return f"it comes from {self._named(rows)}: look at them, the step's other rows are fine"
        every = "each micro-batch has it, so it may be the weights and no row; " if broken else ""
        return f"{every}the rows of the step: {self._named([draw for rows in micro_batches for draw in rows])}"

    def _all_micro_batches(self, step: int) -> list[list[Draw]]:
        plan, width = self.plan(step), self.micro_batch_size
        starts = range(0, len(plan.order), width)
        return [[plan.draws[slot] for slot in plan.order[start : start + width]] for start in starts]

    def _named(self, rows: Sequence[Draw]) -> str:
        return first_of([self.place(draw) for draw in rows])


def step_facts(row: Mapping[str, Any]) -> str:
    """What a person watches of a step, from its line of metrics.jsonl."""
    return f"{row['tokens_per_second']:,.0f} tok/s  padding {row['padding_share']:.0%}"


def place_of(sources: Mapping[str, DatasetConfig], datasets: Mapping[str, TokenizedDataset]) -> Callable[[Draw], str]:
    """The place of a row that was drawn: `file:line`, or data set and line where several files make one data set.

    Args:
        sources: of the data sets, by their keys in the config.
    """

    def place(draw: Draw) -> str:
        key, line = f"datasets.{draw.dataset}", int(datasets[draw.dataset].lines[draw.row])
        return f"{sources[key].path}:{line}" if key in sources else f"{key} line {line}"

    return place
