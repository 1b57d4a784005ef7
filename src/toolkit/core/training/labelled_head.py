"""Compute the output head only where a token carries loss.

The head of a small model is most of its arithmetic: SmolLM2-135M multiplies 576 by 49,152 for every token, of
which only the answers' tokens are trained. A forward pre-hook on the head keeps the hidden states of those
positions and drops the rest before the product. What the model does to its logits afterwards (scaling,
soft-capping) is elementwise, so it still holds; and the call still goes through the model that DDP or FSDP
wrapped.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from toolkit.core.masks import IGNORED_LABEL


class LabelledHead:
    """Attach once to a causal language model; `loss_sums` then computes losses through it."""

    def __init__(self, model: Any) -> None:
        head = model.get_output_embeddings()
        self._mask: torch.Tensor | None = None
        self._handle = head.register_forward_pre_hook(self._keep_labelled)

    def _keep_labelled(self, head: nn.Module, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        if self._mask is None:
            return arguments
        hidden, *rest = arguments
        return hidden[self._mask], *rest

    @contextmanager
    def only(self, mask: torch.Tensor) -> Iterator[None]:
        """Within it, the head sees the positions where `mask`, of shape [batch, seq], is true."""
        self._mask = mask
        try:
            yield
        finally:
            self._mask = None

    def token_losses(self, model: Any, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Cross-entropy in nats of each labelled token, in row-major order: shape [labelled].

        Args:
            input_ids: shape [batch, seq], padded on the right. No attention mask is needed: under causal
                attention no token sees the padding behind it.
            labels: shape [batch, seq]; `labels[b, t]` is the token that position t has to predict, or -100.
        """
        mask = labels != IGNORED_LABEL
        with self.only(mask):
            logits = model(input_ids=input_ids, use_cache=False).logits
        return functional.cross_entropy(logits.float(), labels[mask], reduction="none")

    def detach(self) -> None:
        """Remove the hook."""
        self._handle.remove()
