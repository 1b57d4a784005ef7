"""From positions in the run's row sequence to tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from toolkit.core.step_plan import StepPlanner
from toolkit.core.tokenized import TokenizedDataset
from toolkit.core.training.labelled_head import IGNORED


@dataclass(frozen=True)
class RowArrays:
    """Per-row numbers of a data set, as the planner wants them."""

    lengths: Sequence[int]
    trained_counts: Sequence[int]
    weights: Sequence[float]


def row_arrays(dataset: TokenizedDataset) -> RowArrays:
    """Plain lists: indexing a list is several times faster than indexing an array element by element."""
    return RowArrays(
        dataset.lengths().tolist(), dataset.trained_counts().tolist(), dataset.weights.astype(float).tolist()
    )


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
    labels = np.full((len(dataset_rows), width), IGNORED, dtype=np.int64)
    for row, (ids, trained) in enumerate(dataset_rows):
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, : len(ids) - 1] = np.where(trained[1:], ids[1:], IGNORED)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


class CurriculumCollator:
    """A data collator for a placeholder data set whose rows are just positions: it asks the curriculum.

    `rows_fetched` counts the rows that were turned into tensors.
    """

    def __init__(self, planner: StepPlanner, datasets: Mapping[str, TokenizedDataset]) -> None:
        self._planner = planner
        self._datasets = datasets
        self.rows_fetched = 0

    def __call__(self, features: list[dict[str, int]]) -> dict[str, torch.Tensor]:
        """Tensors of one micro-batch: input_ids and labels [batch, seq], row_weights [batch], loss_weight []."""
        rows, weights = [], []
        for feature in features:
            plan, draw = self._planner.draw_at(feature["position"])
            dataset = self._datasets[draw.dataset]
            rows.append(dataset.row(draw.row))
            weights.append(float(dataset.weights[draw.row]))
        self.rows_fetched += len(rows)
        input_ids, labels = pad_rows(rows)
        return {
            "input_ids": input_ids,
            "labels": labels,
            "row_weights": torch.tensor(weights, dtype=torch.float32),
            "loss_weight": torch.tensor(plan.loss_weight, dtype=torch.float64),
        }
