"""Micro-batches of preference pairs or of labelled answers, as tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlan
from posttrain.dpo.datasets import LabelledDataset, PreferenceDataset
from posttrain.dpo.passes import plan_passes
from posttrain.dpo.rows import Part, RunRows, trained_sides
from posttrain.train.recipe import pad_rows


def micro_batch(
    datasets: Mapping[str, PreferenceDataset], rows: RunRows, draws: Sequence[Draw]
) -> dict[str, torch.Tensor]:
    """The rows drawn as one micro-batch: of B pairs, all chosen answers before all rejected ones, 2 B rows of tokens;
    of B labelled answers as many.

    Returns:
        What `numbered_rows` gives, and row_weights [B]; of labelled answers also desirable [B].
    """
    labelled = isinstance(datasets[draws[0].dataset], LabelledDataset)
    batch = numbered_rows(rows, draws, trained_sides(labelled=labelled))
    batch["row_weights"] = torch.tensor([weight_of(datasets, draw) for draw in draws], dtype=torch.float32)
    if labelled:
        batch["desirable"] = torch.tensor([_is_desirable(datasets[draw.dataset], draw.row) for draw in draws])
    return batch


def weight_of(datasets: Mapping[str, PreferenceDataset], draw: Draw) -> float:
    """Factor on the loss of the pair or answer that was drawn."""
    return float(datasets[draw.dataset].weights[draw.row])


def _is_desirable(dataset: PreferenceDataset, row: int) -> bool:
    assert isinstance(dataset, LabelledDataset)
    return bool(dataset.desirable[row])


def numbered_rows(rows: RunRows, draws: Sequence[Draw], sides: Sequence[int]) -> dict[str, torch.Tensor]:
    """The rows drawn of each of the sides, one side after another: input_ids and labels [rows, seq], how many of these
    positions are a row's own as lengths [rows], and row_numbers [rows]; of two sides also what the rows of each pair
    begin with in common, as shared [draws]."""
    wanted = _wanted(rows, draws, sides)
    tokens = [part.rows.row(row) for part, row in wanted]
    input_ids, labels = pad_rows(tokens)
    batch = {
        "input_ids": input_ids,
        "labels": labels,
        "lengths": torch.tensor(_input_lengths(wanted)),
        "row_numbers": torch.tensor([part.start + row for part, row in wanted]),
    }
    return {**batch, "shared": torch.tensor(_shared_tokens(tokens))} if len(sides) == 2 else batch


def with_padding(
    plan: StepPlan, rows: RunRows, micro_batch_size: int, sides: Sequence[int], cost: int | None, *, joined: bool
) -> StepPlan:
    """The plan with `computed_tokens` as the model computes them: what is padded in each of the passes. A prompt that
    is computed once for two rows counts twice, so that what is more than `tokens` is padding.

    `sides` are those that are trained; `cost` and whether rows are `joined` are for `plan_passes`.
    """
    padding = 0
    for first in range(0, len(plan.order), micro_batch_size):
        draws = [plan.draws[slot] for slot in plan.order[first : first + micro_batch_size]]
        wanted = _wanted(rows, draws, sides)
        shared = _shared_tokens([part.rows.row(row) for part, row in wanted]) if joined else ()
        passes = plan_passes(_input_lengths(wanted), cost, shared)
        padding += sum(each.width - text.length for each in passes for text in each.texts)
    return replace(plan, computed_tokens=plan.tokens + padding)


def _wanted(rows: RunRows, draws: Sequence[Draw], sides: Sequence[int]) -> list[tuple[Part, int]]:
    return [(rows.training(draw.dataset)[side], draw.row) for side in sides for draw in draws]


def _input_lengths(wanted: Sequence[tuple[Part, int]]) -> list[int]:
    # The last token of a row is only predicted.
    return [int(part.lengths[row]) - 1 for part, row in wanted]


def _shared_tokens(rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[int]:
    """Tokens that both rows of each pair begin with and that predict no answer's token; the second rows come after all
    first ones."""
    pairs = zip(rows[: len(rows) // 2], rows[len(rows) // 2 :], strict=True)
    return [_shared_by(*one, *other) for one, other in pairs]


def _shared_by(ids: np.ndarray, trained: np.ndarray, other_ids: np.ndarray, other_trained: np.ndarray) -> int:
    # The last token before an answer predicts its first one.
    before = max(0, min(int(trained.argmax()), int(other_trained.argmax())) - 1)
    differs = ids[:before] != other_ids[:before]
    return int(differs.argmax()) if differs.any() else before
