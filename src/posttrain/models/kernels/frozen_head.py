"""Log-probabilities of tokens by an output head that is not trained, without keeping what it puts out.

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

# More would fall out of a CPU's caches and into fresh memory; fewer would read the head's weights too often.
_ROWS_AT_ONCE = 128


def frozen_head_scores(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    temperature: float = 1.0,
    *,
    entropies: bool = False,
) -> Scores:
    """log p of each label, with gradient by `hidden`, and the entropy at its place, without; in nats, float32.

    Args:
        hidden: shape [tokens, width].
        weight: the head's, shape [vocabulary, width], of the same dtype; treated as a constant, and so is `bias`.
        labels: shape [tokens].
        temperature: logits are divided by it.
        entropies: compute them too; None in their place otherwise.

    Returns:
        Two tensors of shape [tokens].
    """
    logprobs, spread = _FrozenHead.apply(hidden, weight, bias, labels, temperature, entropies)
    return logprobs, spread if entropies else None


class _FrozenHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        temperature: float,
        with_entropies: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.zeros_like(logprobs)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        raw = hidden.new_empty(min(_ROWS_AT_ONCE, len(hidden)), len(weight))
        for first in range(0, len(hidden), _ROWS_AT_ONCE):
            part = slice(first, first + _ROWS_AT_ONCE)
            scores = _log_softmax(hidden[part], weight, bias, temperature, raw)
            chosen = labels[part].unsqueeze(-1)
            logprobs[part] = scores.gather(-1, chosen).squeeze(-1)
            if with_entropies:
                entropies[part] = -torch.linalg.vecdot(scores.exp(), scores)
            if slope is not None:
                minus_slope = scores.exp_().scatter_add_(-1, chosen, scores.new_full(chosen.shape, -1.0))
                products = raw[: len(scores)].copy_(minus_slope) @ weight
                slope[part] = products.mul_(-1 / temperature)
        if slope is not None:
            ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return (slope * gradients[0].unsqueeze(-1)).to(slope.dtype), None, None, None, None, None


def _log_softmax(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float, raw: torch.Tensor
) -> torch.Tensor:
    """log p over the vocabulary, shape [rows, vocabulary], float32; `raw` is overwritten."""
    logits = torch.mm(hidden, weight.T, out=raw[: len(hidden)])
    if bias is not None:
        logits += bias
    scores = logits.float() if logits.dtype != torch.float32 else logits.clone()
    if temperature != 1.0:
        scores /= temperature
    return scores.sub_(scores.logsumexp(-1, keepdim=True))
