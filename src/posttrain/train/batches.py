"""From positions in the run's row sequence to tensors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.step_plan import StepPlan, StepPlanner
from posttrain.data.tokenized import TokenizedDataset

if TYPE_CHECKING:
    from datasets import Dataset


def pad_rows(dataset_rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of a micro-batch, padded on the right.

    Args:
        dataset_rows: token ids and trained flags of each row.

    Returns:
        `input_ids` and `labels`, both of shape [rows, longest − 1]: position t predicts token t + 1, so the
        last token is never an input and the first never a label.
    """
    width = max(len(ids) for ids, _ in dataset_rows) - 1
    inputs = np.zeros((len(dataset_rows), width), dtype=np.int64)
    labels = np.full((len(dataset_rows), width), IGNORED_LABEL, dtype=np.int64)
    for row, (ids, trained) in enumerate(dataset_rows):
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, : len(ids) - 1] = np.where(trained[1:], ids[1:], IGNORED_LABEL)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def positions(count: int) -> "Dataset":
    """A placeholder data set: the trainer only counts positions, and the rows themselves come from the collator."""
    import pyarrow as pa
    from datasets import Dataset
    from datasets.table import InMemoryTable

    # The same by `Dataset.from_dict` takes seconds and half a gigabyte for ten million.
    table = InMemoryTable(pa.table({"position": np.arange(count)}))
    return Dataset(table, fingerprint=f"positions-{count}")


class PositionCollator(ABC):
    """A data collator for `positions`: it asks the curriculum which rows belong to them.

    `rows_fetched` counts the rows that were turned into tensors.
    """

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner
        self.rows_fetched = 0

    def __call__(self, features: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        """Tensors of one micro-batch."""
        plan = self._planner.plan_at(features[0]["position"])
        draws = [self._planner.draw_at(feature["position"]) for feature in features]
        self.rows_fetched += len(draws)
        return self.tensors(plan, draws)

    @abstractmethod
    def tensors(self, plan: StepPlan, draws: Sequence[Draw]) -> dict[str, torch.Tensor]:
        """Tensors of the rows drawn, which are one micro-batch of the step that is planned."""


class CurriculumCollator(PositionCollator):
    """Conversations to train on, row by row."""

    def __init__(self, planner: StepPlanner, datasets: Mapping[str, TokenizedDataset]) -> None:
        super().__init__(planner)
        self._datasets = datasets

    def tensors(self, plan: StepPlan, draws: Sequence[Draw]) -> dict[str, torch.Tensor]:
        """input_ids and labels [batch, seq], row_weights [batch], loss_weight []."""
        input_ids, labels = pad_rows([self._datasets[draw.dataset].row(draw.row) for draw in draws])
        weights = [float(self._datasets[draw.dataset].weights[draw.row]) for draw in draws]
        return {
            "input_ids": input_ids,
            "labels": labels,
            "row_weights": torch.tensor(weights, dtype=torch.float32),
            "loss_weight": torch.tensor(plan.loss_weight, dtype=torch.float64),
        }
