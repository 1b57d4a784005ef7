"""Log-probabilities by an output head that is not trained, without keeping the logits.

The logits of a token are as many as the vocabulary has entries: 200 kB in float32 for one of 49,152. Written once,
turned into probabilities once and read once more for the gradient, they cost more than the product that makes them.
Where the head is frozen, the gradient of log p by the hidden state is known as soon as the probabilities are: it is
W[label] − Σ pᵢ·Wᵢ, over the temperature. So everything is computed forwards, a few rows at a time in the same two
buffers, and what is kept for the backward pass is of the size of the hidden states.
"""

from typing import Any

import torch

Scores = tuple[torch.Tensor, torch.Tensor | None]
"""log p of each label, and the entropy at its place where it was asked for, in nats, float32."""

# On a CPU more would fall out of its caches and into fresh memory; fewer would read the head's weights too often.
_ROWS_ON_CPU = 128
# Elsewhere as many as have logits of this size, in 16 bits, in float32, and in float32 as probabilities. It does not
# follow the memory that is free: the last digits of a product depend on its shape, and a resumed run is the same run.
_LOGITS_ELSEWHERE = 2**30
LOGIT_BYTES = 12


def rows_at_once(device: torch.device, vocabulary: int) -> int:
    """How many rows of logits are there at a time."""
    if device.type == "cpu":
        return _ROWS_ON_CPU
    return max(_ROWS_ON_CPU, _LOGITS_ELSEWHERE // (LOGIT_BYTES * vocabulary))


def frozen_head_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    temperatures: torch.Tensor | None = None,
    *,
    entropies: bool = False,
) -> Scores:
    """log p of each label, with gradient by `hidden`, and the entropy at its place, without; in nats, float32.

    Args:
        hidden: shape [tokens, width].
        weight: the head's, shape [vocabulary, width], of the same dtype; treated as a constant, and so is `bias`.
        labels: shape [tokens].
        temperatures: by which logits are divided, shape [tokens], float32; 1 unless given.
        entropies: compute them too; None in their place otherwise.

    Returns:
        Two tensors of shape [tokens].
    """
    logprobs, spread = _FrozenHead.apply(hidden, weight, bias, labels, temperatures, entropies)
    return logprobs, spread if entropies else None


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        temperatures: torch.Tensor | None,
        with_entropies: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        at_once = rows_at_once(hidden.device, len(weight))
        raw = hidden.new_empty(min(at_once, len(hidden)), len(weight))
        for first in range(0, len(hidden), at_once):
            part = slice(first, first + at_once)
            divisor = None if temperatures is None else temperatures[part].unsqueeze(-1)
            scores = _log_softmax(hidden[part], weight, bias, divisor, raw)
            chosen = labels[part].unsqueeze(-1)
            logprobs[part] = scores.gather(-1, chosen).squeeze(-1)
            if with_entropies:
                entropies[part] = -torch.linalg.vecdot(scores.exp(), scores)
            if slope is not None:
                minus_slope = scores.exp_().scatter_add_(-1, chosen, scores.new_full(chosen.shape, -1.0))
                products = raw[: len(scores)].copy_(minus_slope) @ weight
                slope[part] = products.neg_() if divisor is None else products.mul_(-1 / divisor)
        if slope is not None:
            ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return (slope * gradients[0].unsqueeze(-1)).to(slope.dtype), None, None, None, None, None


def _log_softmax(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    divisor: torch.Tensor | None,
    raw: torch.Tensor,
) -> torch.Tensor:
    """log p over the vocabulary, shape [rows, vocabulary], float32; `raw` is overwritten."""
    logits = torch.mm(hidden, weight.T, out=raw[: len(hidden)])
    if bias is not None:
        logits += bias
    scores = logits.float() if logits.dtype != torch.float32 else logits.clone()
    if divisor is not None:
        scores /= divisor
    return scores.sub_(scores.logsumexp(-1, keepdim=True))
