"""Causal attention with a backward pass that compiles, for training on CPUs.

torch's own kernel for CPUs is fast forwards and slow backwards: at 4 rows of 200 tokens with 9 heads of 64 it takes
1.5 ms and 9.7 ms. Here the forward pass is that kernel; the backward pass computes the probabilities once more from
the log of their sum, as flash attention does (https://arxiv.org/abs/2307.08691), in batched matrix products with plain
arithmetic between them, which torch.compile makes one loop of: 3 ms. Nothing of the size tokens × tokens is kept.
"""

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "recomputed"
# From there on torch's kernel is as fast, and what is written for a moment, rows × heads × tokens², grows large.
_LONGEST = 512


def use_in(model: Any) -> None:
    """Have `model`, whose attention is transformers' `sdpa`, compute it by this one."""
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
    """What transformers' own `sdpa` computes, by it except where this is faster and the case is plain.

    Args:
        module: the attention layer.
        query: shape [batch, heads, tokens, width].
        key: shape [batch, key heads, tokens, width], and so is `value`; a key head serves heads next to each other.
        attention_mask: True where a token sees another, shape [batch, 1, tokens, keys]; None where each sees all
            before it and itself.
        dropout: of probabilities.
        scaling: of query · key.
        others: as `sdpa` takes them. Besides, `prefix_rows`, of shape [batch, prefixes]: the keys and values of those
            rows of the batch stand before a row's own, so that keys = (prefixes + 1) · tokens.

    Returns:
        The output, shape [batch, tokens, heads, width], and no probabilities.
    """
    prefix_rows = others.pop("prefix_rows", None)
    if prefix_rows is not None:
        key, value = (_with_prefixes(part, prefix_rows) for part in (key, value))
    is_traced = torch.compiler.is_compiling() and query.device.type == "cpu"
    if is_traced and scaling is not None and not dropout and 1 < query.shape[2] <= _LONGEST:
        is_causal = others.get("is_causal")
        is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        is_understood = attention_mask is not None or (is_causal and query.shape[2] == key.shape[2])
        if is_understood and query.shape[3] == value.shape[3]:
            return masked_attention(query, key, value, attention_mask, scaling).transpose(1, 2).contiguous(), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> torch.Tensor:
    """softmax(scaling · query · keyᵀ, over what a token sees) · value, of the shape of `query`.

    `mask` is as in `recomputed_attention`: every token sees another, or itself.
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf"))
    return _Attention.apply(query, key, value, None if mask is None else mask.to(query.dtype), scaling)


def _with_prefixes(part: torch.Tensor, prefix_rows: torch.Tensor) -> torch.Tensor:
    before = part[prefix_rows].transpose(1, 2).flatten(2, 3)  # [batch, heads, prefixes · tokens, width]
    return torch.cat([before, part], dim=2)


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
        """`bias` is 0 or −∞ for each pair of a token and a key; None is causal."""
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
        # The heads of a key head are rows of one matrix: [batch · key heads, heads of one · tokens, width].
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
