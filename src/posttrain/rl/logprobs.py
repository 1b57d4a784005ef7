"""Log-probabilities of completions, computed only where something is learnt from them.

A batch of TRL holds prompts padded on the left and completions padded on the right to the longest of the whole
generation. Here each row is moved to the left and padded on the right alone, to the longest of the micro-batch: under
causal attention no token sees what is behind it, so no attention mask is needed, and the output head sees the
completions' own tokens only. A prompt that several rows of it begin with is computed once.
"""

from collections.abc import Iterator
from typing import Any

import torch

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.compiled_layers import is_compiled
from posttrain.models.kernels.shared_prompts import SharedPrompts


class CompletionLogprobs:
    """Computes log p of each completion token, and the entropy at its place, by a model that is trained."""

    def __init__(self, prompts: SharedPrompts, temperature: float) -> None:
        """`temperature`: that of the samples; logits are divided by it."""
        self._prompts = prompts
        self._temperature = temperature

    def compute(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_length: int, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities with gradient, and entropies without; both of shape [batch, completion_length], in nats.

        Args:
            input_ids: prompts and completions, shape [batch, seq]; the last `completion_length` columns are the
                completions.
            attention_mask: of the same shape; 0 for padding.
            rows: how many rows go through the model at once.

        Returns:
            0 in the place of padding.
        """
        found = [
            self._of_labels(model, *_moved_left(input_ids[part], attention_mask[part], completion_length), rows)
            for part in _parts(len(input_ids), rows)
        ]
        kept = attention_mask[:, -completion_length:].bool()
        nothing = torch.zeros(kept.shape, dtype=torch.float32, device=input_ids.device)
        logprobs, entropies = (torch.cat(values) for values in zip(*found, strict=True))
        return nothing.masked_scatter(kept, logprobs), nothing.masked_scatter(kept, entropies)

    def _of_labels(
        self, model: Any, ids: torch.Tensor, labels: torch.Tensor, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(ids) == 1 < rows and is_compiled(model):
            # For one row, where there are more as a rule, the layers would be compiled once more: it gets a companion
            # that has nothing to say.
            ids, labels = ids.expand(2, -1), torch.cat([labels, torch.full_like(labels, IGNORED_LABEL)])
        chosen, entropy = self._prompts.scores(model, ids, labels, temperature=self._temperature, entropies=True)
        assert entropy is not None
        return chosen, entropy


def _parts(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _moved_left(
    input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels of shape [rows, longest − 1], padded on the right; only completion tokens are labels."""
    mask = attention_mask.bool()
    order = torch.argsort((~mask).int(), dim=1, stable=True)  # what is there first, in its own order
    width = int(mask.sum(dim=1).max())
    is_completion = torch.zeros_like(mask)
    is_completion[:, -completion_length:] = mask[:, -completion_length:]
    ids = input_ids.gather(1, order)[:, :width]
    labels = torch.where(is_completion, input_ids, IGNORED_LABEL).gather(1, order)[:, :width]
    return ids[:, :-1], labels[:, 1:]
