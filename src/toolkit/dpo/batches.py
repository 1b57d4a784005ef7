"""From positions in the run's row sequence to tensors of pairs, or of labelled answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from toolkit.core.curriculum.curriculum import Draw
from toolkit.core.step_plan import StepPlan, StepPlanner
from toolkit.core.training.batches import PositionCollator, pad_rows
from toolkit.dpo.datasets import LabelledDataset, PreferenceDataset
from toolkit.dpo.passes import plan_passes
from toolkit.dpo.rows import Part, RunRows, trained_sides


class PreferenceCollator(PositionCollator):
    """Micro-batches of what the curriculum draws: pairs, all chosen answers before all rejected ones, or labelled
    answers."""

    def __init__(self, planner: StepPlanner, datasets: Mapping[str, PreferenceDataset], rows: RunRows) -> None:
        super().__init__(planner)
        self._datasets = datasets
        self._rows = rows

    def tensors(self, plan: StepPlan, draws: Sequence[Draw]) -> dict[str, torch.Tensor]:
        """One micro-batch of B pairs, which has 2 B rows of tokens, or of B labelled answers, which has B.

        Returns:
            input_ids and labels [rows, seq], lengths and row_numbers [rows], row_weights [B], and loss_weight [], which
            is the sum of the weights of all pairs (answers) of the optimizer step; of labelled answers also desirable
            [B].
        """
        labelled = isinstance(self._datasets[draws[0].dataset], LabelledDataset)
        batch = numbered_rows(self._rows, draws, trained_sides(labelled=labelled))
        if labelled:
            batch["desirable"] = torch.tensor([self._is_desirable(draw) for draw in draws])
        return {
            **batch,
            "row_weights": torch.tensor([self._weight(draw) for draw in draws], dtype=torch.float32),
            "loss_weight": torch.tensor(sum(map(self._weight, plan.draws)), dtype=torch.float64),
        }

    def _weight(self, draw: Draw) -> float:
        return float(self._datasets[draw.dataset].weights[draw.row])

    def _is_desirable(self, draw: Draw) -> bool:
        dataset = self._datasets[draw.dataset]
        assert isinstance(dataset, LabelledDataset)
        return bool(dataset.desirable[draw.row])


def numbered_rows(rows: RunRows, draws: Sequence[Draw], sides: Sequence[int]) -> dict[str, torch.Tensor]:
    """The rows drawn of each of the sides, one side after another: input_ids and labels [rows, seq], how many of these
    positions are a row's own as lengths [rows], and row_numbers [rows]."""
    wanted = [(rows.training(draw.dataset)[side], draw.row) for side in sides for draw in draws]
    input_ids, labels = pad_rows([part.rows.row(row) for part, row in wanted])
    return {
        "input_ids": input_ids,
        "labels": labels,
        "lengths": torch.tensor(_input_lengths(wanted)),
        "row_numbers": torch.tensor([part.start + row for part, row in wanted]),
    }


def _input_lengths(wanted: Sequence[tuple[Part, int]]) -> list[int]:
    # The last token of a row is only predicted.
    return [int(part.lengths[row]) - 1 for part, row in wanted]


def with_padding(
    plan: StepPlan, rows: RunRows, micro_batch_size: int, sides: Sequence[int], cost: int | None
) -> StepPlan:
    """The plan with `computed_tokens` as the model computes them: what is padded in each of the passes.

    `sides` are those that are trained; `cost` is that of a pass, for `plan_passes`.
    """
    computed = 0
    for first in range(0, len(plan.order), micro_batch_size):
        draws = [plan.draws[slot] for slot in plan.order[first : first + micro_batch_size]]
        wanted = [(rows.training(draw.dataset)[side], draw.row) for side in sides for draw in draws]
        computed += sum(len(each.rows) * (each.width + 1) for each in plan_passes(_input_lengths(wanted), cost))
    return replace(plan, computed_tokens=computed)
