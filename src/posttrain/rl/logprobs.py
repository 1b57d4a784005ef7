"""Log-probabilities and entropies of completions, in one shape and by one program wherever they are asked for.

In 16 bits the shape of a batch decides the last digits, so what is compared (new against old policy, policy against
reference, model against engine) is computed from the same rows, padded alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.compiled_layers import is_compiled
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.shared_prompts import SharedPrompts
from posttrain.rl.rollout.rollout import Rollout


@dataclass(frozen=True)
class CompletionBatch:
    """Completions with their prompts, as a model is given them.

    Attributes:
        input_ids: prompt and completion of each row, padded on the right, shape [rows, longest − 1].
        labels: the completion's tokens at the places that predict them, -100 elsewhere, of the same shape.
        present: where a completion has a token, bool [rows, tokens].
        temperatures: that each row was sampled at, shape [rows]; None where all are 1.
    """

    input_ids: torch.Tensor
    labels: torch.Tensor
    present: torch.Tensor
    temperatures: torch.Tensor | None

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], pad_id: int, device: torch.device) -> "CompletionBatch":
        """The rows of some rollouts. One without tokens, whose prompt is too long, stands there as a single token."""
        completions = [torch.from_numpy(each.ids) if each.tokens else torch.tensor([pad_id]) for each in rollouts]
        prompts = [torch.tensor(each.prompt.ids if each.tokens else each.prompt.ids[-1:]) for each in rollouts]
        pairs = list(zip(prompts, completions, strict=True))
        ids = pad_sequence([torch.cat(pair) for pair in pairs], batch_first=True, padding_value=pad_id)
        ignored = [torch.full_like(prompt, IGNORED_LABEL) for prompt in prompts]
        labels = pad_sequence(
            [torch.cat(pair) for pair in zip(ignored, completions, strict=True)],
            batch_first=True,
            padding_value=IGNORED_LABEL,
        )
        present = pad_sequence([torch.ones(len(each), dtype=torch.bool) for each in completions], batch_first=True)
        temperatures = np.array([each.temperature for each in rollouts], dtype=np.float32)
        return cls(
            ids[:, :-1].to(device),
            labels[:, 1:].to(device),
            present.to(device),
            None if (temperatures == 1).all() else torch.from_numpy(temperatures).to(device),
        )


class CompletionScorer:
    """Computes log p of each completion token, and the entropy at its place, by one model."""

    def __init__(self, model: Any, rows_at_once: int) -> None:
        """`model`: the bare one; its attention becomes one that can share prompts, where that is possible.

        `rows_at_once`: how many rows a pass has as a rule.
        """
        self._prompts = SharedPrompts(LabelledHead(model), model)
        self._is_compiled = is_compiled(model)
        self._rows = rows_at_once

    def __call__(self, model: Any, batch: CompletionBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities with gradient, and entropies without, in nats; shape [rows, tokens], 0 where none is.

        Args:
            model: the one that this was made for, or what wraps it.
        """
        ids, labels = batch.input_ids, batch.labels
        temperatures = batch.temperatures
        if temperatures is not None:
            temperatures = temperatures.repeat_interleave(batch.present.sum(dim=1))
        if self._is_compiled and len(ids) == 1 < self._rows:
            # One row would be another program: a row without labels makes it two.
            ids, labels = ids.expand(2, -1), torch.cat([labels, torch.full_like(labels, IGNORED_LABEL)])
        logprobs, entropies = self._prompts.scores(model, ids, labels, temperatures=temperatures, entropies=True)
        assert entropies is not None
        nothing = torch.zeros(batch.present.shape, dtype=torch.float32, device=ids.device)
        return nothing.masked_scatter(batch.present, logprobs), nothing.masked_scatter(batch.present, entropies)
