"""Log-probabilities from a frozen output head, without keeping the logits.

A token has as many logits as the vocabulary has entries: 200 kB in float32 for 49,152. Writing them, turning them into
probabilities and reading them again for the gradient costs more than the matrix product that computes them. With a
frozen head, the probabilities also give the gradient of log p with respect to the hidden state: (W[label] − Σ pᵢ·Wᵢ) /
temperature. So everything is computed in the forward pass, a few rows at a time, and only a tensor of the size of the
hidden states is kept for the backward pass.
"""

from typing import Any

import torch

Scores = tuple[torch.Tensor, torch.Tensor | None]
"""log p of each label, and the entropy at its position if requested, in nats, float32."""

# On a CPU, more rows would exceed its caches and need fresh memory; fewer would read the head's weights too often.
_ROWS_ON_CPU = 128
# Elsewhere, as many rows as have this many bytes of logits: in 16 bits, in float32, and as float32 probabilities. It
# does not depend on free memory: a product's last digits depend on its shape, and a resumed run must be the same run.
_LOGITS_ELSEWHERE = 2**30
LOGIT_BYTES = 12


def rows_at_once(device: torch.device, vocabulary: int) -> int:
    """How many rows of logits are in memory at a time."""
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
    smoothing: float = 0.0,
) -> Scores:
    """log p of each label, with gradient to `hidden`, and the entropy at its position, without; in nats, float32.

    Args:
        hidden: shape [tokens, width].
        weight: the head's weight, shape [vocabulary, width], same dtype as `hidden`; a constant, like `bias`.
        labels: shape [tokens].
        temperatures: divisors of the logits, shape [tokens], float32; 1 if not given.
        entropies: whether to compute them too; None is returned in their place otherwise.
        smoothing: ε of label smoothing: (1 − ε)·log p of the label + ε · the mean of log p over the vocabulary stands
            in the place of log p.

    Returns:
        Two tensors of shape [tokens].
    """
    logprobs, spread = _FrozenHead.apply(hidden, weight, bias, labels, temperatures, (entropies, smoothing))
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
        options: tuple[bool, float],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        with_entropies, smoothing = options
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
            logprobs[part] = smoothed(scores, chosen, smoothing)
            if with_entropies:
                entropies[part] = -torch.linalg.vecdot(scores.exp(), scores)
            if slope is not None:
                minus_slope = scores.exp_().scatter_add_(-1, chosen, scores.new_full(chosen.shape, smoothing - 1.0))
                if smoothing:
                    minus_slope -= smoothing / len(weight)
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


def smoothed(scores: torch.Tensor, chosen: torch.Tensor, smoothing: float) -> torch.Tensor:
    """(1 − ε)·log p of the chosen entry + ε · the mean of log p, shape [tokens], for ε = `smoothing`.

    Label smoothing as in https://arxiv.org/abs/1512.00567, section 7, with a uniform distribution.

    Args:
        scores: log p over the vocabulary, shape [tokens, vocabulary].
        chosen: shape [tokens, 1].
    """
    found = scores.gather(-1, chosen).squeeze(-1)
    return found if not smoothing else (1 - smoothing) * found + smoothing * scores.mean(-1)


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
