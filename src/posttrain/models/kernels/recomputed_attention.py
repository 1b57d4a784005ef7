"""Causal attention with a backward pass that compiles, for training on CPUs.

torch's own CPU kernel is fast forward and slow backward: for 4 rows of 200 tokens with 9 heads of 64 it takes 1.5 ms
and 9.7 ms. Here the forward pass is that kernel; the backward pass recomputes the probabilities from their log-sum-exp,
as flash attention does (https://arxiv.org/abs/2307.08691), with batched matrix products and plain arithmetic between
them, which torch.compile fuses into one loop: 3 ms. Nothing of size tokens × tokens is kept.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from posttrain.models.kernels.segmented_attention import segmented_attention

NAME = "recomputed"
# In tokens. Beyond it torch's kernel is as fast, and the temporary tensors, rows × heads × tokens², grow large.
_LONGEST = 512
# Rows of a decoding step whose padding is left out together, by one call of torch's kernel.
_ROWS = 16


def use_in(model: Any) -> None:
    """Make `model`, which uses transformers' `sdpa` attention, use this attention instead."""
    AttentionInterface.register(NAME, recomputed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def recomputed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Compute what transformers' `sdpa` computes; call `sdpa` itself except in plain cases where this is faster.

    Args:
        module: the attention layer.
        query: shape [batch, heads, tokens, width].
        key: shape [batch, key heads, tokens, width], like `value`; each key head serves adjacent query heads.
        attention_mask: True where a token attends to a key, shape [batch, 1, tokens, keys]; None if each token attends
            to itself and all tokens before it.
        dropout: rate for the probabilities.
        scaling: factor of query · key.
        others: further arguments of `sdpa`; or, for a sequence that consists of segments, the arguments of
            `segmented_attention`, which then computes it, whatever the mask.

    Returns:
        The output, shape [batch, tokens, heads, width], and None in place of the probabilities.
    """
    segments, varlen = others.pop("segments", None), others.pop("varlen", None)
    if segments is not None or varlen is not None:
        return segmented_attention(query, key, value, scaling, segments, varlen), None
    if query.shape[2] == 1 < key.shape[2] and not dropout:
        return _of_next_token(query, key, value, attention_mask, scaling), None
    is_traced = torch.compiler.is_compiling() and query.device.type == "cpu"
    if is_traced and scaling is not None and not dropout and 1 < query.shape[2] <= _LONGEST:
        is_causal = others.get("is_causal")
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        is_understood = attention_mask is not None or (is_causal and query.shape[2] == key.shape[2])
        if is_understood and query.shape[3] == value.shape[3]:
            return masked_attention(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def _of_next_token(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    """Attention of one new token per row to all keys, shape [batch, 1, heads, width].

    The query heads of a key head go through torch's kernel as if they were tokens, so that keys and values, by far the
    largest tensors of a decoding step, are not copied for each of them. Padding that neighbouring rows share is not
    read.
    """
    batch, heads, _, width = query.shape
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    found = [
        torch.nn.functional.scaled_dot_product_attention(
            grouped[rows],
            key[rows, :, first:],
            value[rows, :, first:],
            attn_mask=None if mask is None else mask[rows, ..., first:],
            scale=scaling,
        )
        for rows, first in _without_padding(mask, batch)
    ]
    return torch.cat(found).reshape(batch, 1, heads, -1)


def _without_padding(mask: torch.Tensor | None, batch: int) -> list[tuple[slice, int]]:
    """Some consecutive rows at a time, with the first key that one of them attends to."""
    if mask is None or len(mask) != batch or mask.dtype != torch.bool or mask.device.type != "cpu":
        return [(slice(0, batch), 0)]
    firsts = mask.reshape(batch, -1).to(torch.uint8).argmax(dim=1).tolist()
    some = [slice(start, start + _ROWS) for start in range(0, batch, _ROWS)]
    return [(rows, min(firsts[rows])) for rows in some]


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """softmax(scaling · query · keyᵀ, over the keys that a token attends to) · value, of the shape of `query`.

    `mask` is as in `recomputed_attention`; every token must attend to at least one key.
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf"))
    return _Attention.apply(query, key, value, None if mask is None else mask.to(query.dtype), scaling)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        scaling: float,
    ) -> torch.Tensor:
        """`bias` is 0 or −∞ for each pair of token and key; None means causal."""
        group = query.shape[1] // key.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1) for part in (key, value))
        output, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, keys, values, 0.0, bias is None, attn_mask=bias, scale=scaling
        )
        ctx.save_for_backward(query, key, value, bias, output, log_sums)
        ctx.scaling = scaling
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value, bias, output, log_sums = ctx.saved_tensors
        batch, heads, tokens, width = query.shape
        key_heads, length = key.shape[1:3]
        # The query heads of a key head are rows of one matrix: [batch · key heads, heads per key head · tokens, width].
        pairs = (batch * key_heads, heads // key_heads, tokens)
        stacked = (pairs[0], pairs[1] * tokens, width)
        queries, slopes = query.reshape(stacked), gradients[0].reshape(stacked)
        keys, values = (part.reshape(pairs[0], length, width) for part in (key, value))

        products = torch.bmm(queries, keys.transpose(1, 2)).view(*pairs, length)
        shares = (products.float() * ctx.scaling - log_sums.reshape(*pairs, 1)).exp()
        if bias is None:
            seen = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).tril()
        else:
            seen = (bias == 0).expand(batch, key_heads, tokens, length).reshape(pairs[0], 1, tokens, length)
        shares = torch.where(seen, shares, 0.0)
        of_shares = torch.bmm(slopes, values.transpose(1, 2)).view(*pairs, length).float()
        mean_slopes = (gradients[0].float() * output.float()).sum(-1).reshape(*pairs, 1)
        of_products = (shares * (of_shares - mean_slopes) * ctx.scaling).to(query.dtype).view(*stacked[:2], length)

        of_value = torch.bmm(shares.to(value.dtype).view(*stacked[:2], length).transpose(1, 2), slopes)
        of_query = torch.bmm(of_products, keys)
        of_key = torch.bmm(of_products.transpose(1, 2), queries)
        return of_query.view(query.shape), of_key.view(key.shape), of_value.view(value.shape), None, None
