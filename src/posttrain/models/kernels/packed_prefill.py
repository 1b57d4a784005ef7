"""Fill a cache with the keys and values of prompts, without padding and each prompt once."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from posttrain.models.kernels.offloaded_embeddings import device_of
from posttrain.models.kernels.packing import Packed
from posttrain.models.kernels.roomy_cache import Filling, Place, RoomyLayer, roomy_cache
from posttrain.models.kernels.segmented_attention import Segment

# Tokens that go through the model together unless a prompt has more. With more, activations leave a CPU's caches.
_AT_ONCE = 1024

Prompt = tuple[int, ...]


def packed_prefill(model: Any, prompts: Sequence[Prompt]) -> DynamicCache:
    """A cache that holds `prompts`, one for each row, with zeros before those that are shorter than the longest.

    The model must take packed rows (see `why_not_packed`), and all its layers must see all tokens.
    """
    cache = roomy_cache(model.config)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    rows: dict[Prompt, list[int]] = {}
    for row, prompt in enumerate(prompts):
        rows.setdefault(prompt, []).append(row)
    width = max(map(len, prompts))
    for some in _portions(filter(None, rows)):
        packed = _one_sequence(some, device_of(model))
        places = [Place(rows[prompt], *segment[:2]) for prompt, segment in zip(some, packed.segments, strict=True)]
        _set_filling(cache, Filling(len(prompts), width, places))
        base.get_decoder()(input_ids=packed.input_ids, past_key_values=cache, use_cache=True, **packed.inputs())
    _set_filling(cache, None)
    return cache


def _set_filling(cache: DynamicCache, filling: Filling | None) -> None:
    for layer in cache.layers:
        assert isinstance(layer, RoomyLayer)
        layer.filling = filling


def _portions(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Consecutive prompts of together at most `_AT_ONCE` tokens, or a single longer one."""
    portion: list[Prompt] = []
    for prompt in prompts:
        if portion and sum(map(len, portion)) + len(prompt) > _AT_ONCE:
            yield portion
            portion = []
        portion.append(prompt)
    if portion:
        yield portion


def _one_sequence(prompts: Sequence[Prompt], device: torch.device) -> Packed:
    segments: list[Segment] = []
    for prompt in prompts:
        first = segments[-1].end if segments else 0
        segments.append(Segment(first, first + len(prompt)))
    ids = torch.tensor([[token for prompt in prompts for token in prompt]], device=device)
    positions = torch.tensor([[place for prompt in prompts for place in range(len(prompt))]], device=device)
    return Packed(ids, ids, positions, tuple(segments), torch.ones(ids.shape, device=device))
