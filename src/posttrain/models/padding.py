"""Rows of tokens as padded tensors of inputs and labels."""

from collections.abc import Sequence

import numpy as np
import torch

from posttrain.conversation.masks import IGNORED_LABEL

Values = np.ndarray | Sequence[int]


def pad_rows(dataset_rows: Sequence[tuple[Values, Values]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of rows that go through the model together, padded on the right.

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
