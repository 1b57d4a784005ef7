"""Rows of tokens as one sequence, without padding and with each shared prompt only once.

Linear layers then compute real tokens alone; attention stays within each row. Rows with one prompt (the completions of
a group, both answers of a pair) are cut: their prompt comes once, and each row attends to it from the prompt's last
token on. What follows a row's last label is left out, since nothing depends on it.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.segmented_attention import Segment, attention_inputs

# A shorter prompt is computed with each row: attention to a prefix takes longer than causal attention.
_WORTH_SHARING = 16


@dataclass(frozen=True)
class Packed:
    """Rows as one sequence, in their order, each shared prompt before its first row.

    Attributes:
        input_ids, labels, positions: shape [1, tokens]; positions are those in the whole rows.
        segments: the prompts and rows that the sequence consists of.
        rows: how many rows each token belongs to, shape [1, tokens], float32.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    positions: torch.Tensor
    segments: tuple[Segment, ...]
    rows: torch.Tensor

    def inputs(self) -> dict[str, Any]:
        """Inputs of the model besides the tokens."""
        device = self.input_ids.device
        # transformers passes a mask of four dimensions on to the attention, which sees the segments instead.
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        return {"position_ids": self.positions, "attention_mask": mask, **attention_inputs(self.segments, device)}


def pack(input_ids: torch.Tensor, labels: torch.Tensor, *, worth_sharing: int = _WORTH_SHARING) -> Packed:
    """Pack rows, of shape [rows, seq], padded on the right; prompts of `worth_sharing` tokens or more are shared."""
    lengths = row_lengths(labels).tolist()
    firsts = (labels != IGNORED_LABEL).int().argmax(dim=1).tolist()
    # The last token of a prompt predicts the first one of an answer, so each row keeps it.
    prompts = [tuple(ids[: first + 1].tolist()) for ids, first in zip(input_ids, firsts, strict=True)]
    rows_with = Counter(prompts)
    known: dict[tuple[int, ...], tuple[int, int]] = {}  # where a shared prompt lies in the sequence
    segments: list[Segment] = []
    owners: list[torch.Tensor] = []
    columns: list[torch.Tensor] = []
    counts: list[torch.Tensor] = []

    def add(row: int, start: int, stop: int, prefix: tuple[int, int] = (0, 0), count: int = 1) -> Segment:
        """Append the tokens of a row from `start` to `stop`."""
        first = segments[-1].end if segments else 0
        segments.append(Segment(first, first + stop - start, *prefix))
        columns.append(torch.arange(start, stop))
        owners.append(torch.full((stop - start,), row))
        counts.append(torch.full((stop - start,), float(count)))
        return segments[-1]

    for row, (prompt, length, first) in enumerate(zip(prompts, lengths, firsts, strict=True)):
        if rows_with[prompt] == 1 or first < worth_sharing:
            add(row, 0, length)
            continue
        if prompt not in known:
            known[prompt] = add(row, 0, first, count=rows_with[prompt])[:2]
        add(row, first, length, known[prompt])
    # A shared prompt ends before the first label, so it brings no labels along.
    place = torch.cat(owners).to(labels.device), torch.cat(columns).to(labels.device)
    ids, wanted, positions = (part.unsqueeze(0) for part in (input_ids[place], labels[place], place[1]))
    shared = torch.cat(counts).to(labels.device).unsqueeze(0)
    return Packed(ids, wanted, positions, tuple(segments), shared)


def row_lengths(labels: torch.Tensor) -> torch.Tensor:
    """Tokens of each row up to its last label, at least 1: shape [rows], for labels of shape [rows, seq]."""
    places = torch.arange(1, labels.shape[1] + 1, device=labels.device)
    return (places * (labels != IGNORED_LABEL)).amax(dim=1).clamp(min=1)
