"""Causal attention within each segment of one long sequence: rows that go through a model together need no padding.

A segment sees its own earlier tokens and, if it has one, its whole prefix, which is another part of the sequence: the
prompt that several rows share. On a CPU, segments are computed one by one, which also keeps a segment's matrices in the
cache; torch.compile does not look inside, so the number of segments and their lengths cause no further compilation. The
backward pass computes the probabilities again, for some tokens at a time, so nothing of size tokens × tokens is kept.
On CUDA, torch's kernel for sequences of different lengths computes all segments.
"""

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

# torch 2.11 takes fewer key heads than query heads without being told.
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}
# Tokens whose probabilities are in memory at a time, heads × tokens × keys; later tokens see more keys.
_AT_ONCE = 256


class Segment(NamedTuple):
    """Positions in the sequence: those of the segment itself, and those of its prefix, which are empty without one."""

    first: int
    end: int
    prefix: int = 0
    prefix_end: int = 0


def attention_inputs(segments: Sequence[Segment], device: torch.device) -> dict[str, Any]:
    """What the attention of a model on `device` is to be told about the segments of its input, by keyword.

    The segments begin where the one before ends, from 0 on.
    """
    if device.type == "cuda":
        return {"varlen": Varlen.of(segments, device)}
    # The compiler takes dimensions of the same size for the same dimension. Their number comes first, so that this size
    # is odd, unlike those of a model's activations.
    return {"segments": torch.tensor([len(segments), *(place for each in segments for place in each)])}


class Varlen(NamedTuple):
    """Segments for torch's kernel for sequences of different lengths.

    Attributes:
        keys: positions of all keys that each segment sees, one segment after another, shape [keys].
        ends: where the queries and the keys of each segment end, each of shape [segments + 1], the first 0.
        longest: most queries and most keys of a segment.
    """

    keys: Tensor
    ends: tuple[Tensor, Tensor]
    longest: tuple[int, int]

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device) -> "Varlen":
        """The same segments on `device`."""
        seen = [[*range(each.prefix, each.prefix_end), *range(each.first, each.end)] for each in segments]
        queries, keys = [each.end - each.first for each in segments], list(map(len, seen))
        ends = (_ends(queries, device), _ends(keys, device))
        places = torch.tensor([place for each in seen for place in each], device=device)
        return cls(places, ends, (max(queries), max(keys)))


def _ends(counts: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor([0, *counts], device=device).cumsum(0).int()


def segmented_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    segments: Tensor | None = None,
    varlen: Varlen | None = None,
) -> Tensor:
    """Attention of one sequence that consists of segments.

    Args:
        query: shape [1, heads, tokens, width].
        key: shape [1, key heads, tokens, width], like `value`; each key head serves adjacent query heads.
        scaling: factor of query · key; by default 1 / √width.
        segments, varlen: one of them, as `attention_inputs` gives it.

    Returns:
        Shape [1, tokens, heads, width].
    """
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)
    if segments is not None:
        return _segmented(query, key, value, segments, scale).transpose(1, 2)
    assert varlen is not None
    keys, values = (part[0].transpose(0, 1)[varlen.keys] for part in (key, value))
    found = varlen_attn(
        query[0].transpose(0, 1),
        keys,
        values,
        *varlen.ends,
        *varlen.longest,
        scale=scale,
        window_size=(-1, 0),
        **_GROUPED,
    )
    assert isinstance(found, Tensor)
    return found.unsqueeze(0)


@torch.library.custom_op("posttrain::segmented_attention", mutates_args=())
def _segmented(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float) -> Tensor:
    """The output, of the shape of `query`."""
    output = _output_of(query, key, value, segments, scale)
    group = query.shape[1] // key.shape[1]
    for segment in _listed(segments):
        keys, values = (_seen(part, segment).repeat_interleave(group, dim=1) for part in (key, value))
        own = slice(segment.first, segment.end)
        bias = _bias(segment, query.dtype)
        output[:, :, own], _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query[:, :, own], keys, values, 0.0, bias is None, attn_mask=bias, scale=scale
        )
    return output


@_segmented.register_fake
def _output_of(query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float) -> Tensor:
    return _empty_like(query, query.dtype)


@torch.library.custom_op("posttrain::segmented_attention_backward", mutates_args=())
def _backward(
    slopes: Tensor, query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value, from that of the output, `slopes`."""
    of_query, _, _ = _gradients_of(slopes, query, key, value, segments, scale)
    # Several segments may add to the gradient of a prefix, so the sum is kept in float32.
    of_key, of_value = (_empty_like(part, torch.float32).zero_() for part in (key, value))
    heads, width = key.shape[1], key.shape[3]
    for tokens, segment in _in_parts(segments):
        # The query heads of a key head are rows of one matrix: [key heads, heads per key head · tokens, width].
        queries, out_slopes = (part[0, :, tokens].reshape(heads, -1, width) for part in (query, slopes))
        keys, values = (_seen(part, segment)[0] for part in (key, value))
        grouped = (heads, query.shape[1] // heads, tokens.stop - tokens.start, keys.shape[1])
        scores = torch.bmm(queries, keys.transpose(1, 2)).view(grouped).float().mul_(scale)
        # Not from a kept log-sum-exp: in 16 bits, products are rounded, and large ones would have shares beyond 1.
        shares = scores.masked_fill_(~_visible(*grouped[2:]), float("-inf")).softmax(-1)
        changes = torch.bmm(out_slopes, values.transpose(1, 2)).view(grouped).float()
        changes.sub_(torch.linalg.vecdot(changes, shares).unsqueeze(-1)).mul_(shares).mul_(scale)
        shares, changes = (part.to(query.dtype).view(heads, -1, keys.shape[1]) for part in (shares, changes))
        of_query[0, :, tokens] = torch.bmm(changes, keys).view(-1, grouped[2], width)
        _add(of_key, segment, torch.bmm(changes.transpose(1, 2), queries))
        _add(of_value, segment, torch.bmm(shares.transpose(1, 2), out_slopes))
    return of_query, of_key.to(key.dtype), of_value.to(value.dtype)


@_backward.register_fake
def _gradients_of(
    slopes: Tensor, query: Tensor, key: Tensor, value: Tensor, segments: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_like(query, query.dtype), _empty_like(key, key.dtype), _empty_like(value, value.dtype)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(slopes, *ctx.saved_tensors, ctx.scale), None, None


_segmented.register_autograd(_gradients, setup_context=_remember)


def _empty_like(part: Tensor, dtype: torch.dtype) -> Tensor:
    """An empty tensor of the shape of `part`, [1, heads, tokens, width], of which each token is one piece of memory."""
    _, heads, tokens, width = part.shape
    return part.new_empty(1, tokens, heads, width, dtype=dtype).transpose(1, 2)


def _listed(segments: Tensor) -> list[Segment]:
    return [Segment(*places) for places in segments[1:].view(-1, 4).tolist()]


def _in_parts(segments: Tensor) -> Iterator[tuple[slice, Segment]]:
    """At most `_AT_ONCE` tokens of a segment, and the segment as far as they see it."""
    for segment in _listed(segments):
        for first in range(segment.first, segment.end, _AT_ONCE):
            end = min(first + _AT_ONCE, segment.end)
            yield slice(first, end), segment._replace(end=end)


def _seen(part: Tensor, segment: Segment) -> Tensor:
    """What a segment sees of keys or values: its prefix, then itself."""
    own = part[:, :, segment.first : segment.end]
    if segment.prefix == segment.prefix_end:
        return own
    return torch.cat([part[:, :, segment.prefix : segment.prefix_end], own], dim=2)


def _visible(tokens: int, keys: int) -> Tensor:
    """Which keys each token sees if the last one sees all, bool [tokens, keys]."""
    return torch.ones(tokens, keys, dtype=torch.bool).tril(keys - tokens)


def _bias(segment: Segment, dtype: torch.dtype) -> Tensor | None:
    """0 or −∞ for each pair of token and key, shape [tokens, keys]; None where a segment only sees itself."""
    if segment.prefix == segment.prefix_end:
        return None
    tokens = segment.end - segment.first
    seen = _visible(tokens, segment.prefix_end - segment.prefix + tokens)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))


def _add(gradient: Tensor, segment: Segment, found: Tensor) -> None:
    """Add the gradient of what a segment sees, shape [heads, keys, width], where it was seen."""
    prefix = segment.prefix_end - segment.prefix
    gradient[0, :, segment.prefix : segment.prefix_end] += found[:, :prefix]
    gradient[0, :, segment.first : segment.end] += found[:, prefix:]
