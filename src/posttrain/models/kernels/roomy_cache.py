"""A cache of keys and values that is not copied for each token."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

# Tokens there is room for after those that are held. All are copied when it is used up, not at each token.
_ROOM = 64


def roomy_cache(config: Any) -> DynamicCache:
    """transformers' DynamicCache for a model of this config, with `RoomyLayer` where a layer sees all tokens."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


class Place(NamedTuple):
    """Rows of a cache that begin with the tokens from `first` to `end` of a sequence."""

    rows: Sequence[int]
    first: int
    end: int


class Filling(NamedTuple):
    """How the tokens of a sequence are distributed to a cache of `rows` rows, where all of them end at `width`."""

    rows: int
    width: int
    places: Sequence[Place]


class RoomyLayer(DynamicLayer):
    """Keys and values of a layer, of shape [rows, heads, tokens, width], in memory with room for more tokens.

    While `filling` is set, `update` takes a sequence that consists of the prompts of several rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.filling: Filling | None = None
        self._rooms: dict[str, torch.Tensor] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add keys and values, of shape [rows, heads, new tokens, width]; return all that the new tokens may see."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self.filling is not None:
            self.keys = self._filled("keys", key_states, self.filling)
            self.values = self._filled("values", value_states, self.filling)
            return key_states, value_states
        self.keys = self._extended("keys", self.keys, key_states)
        self.values = self._extended("values", self.values, value_states)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Go on with some of the rows, or the same one several times."""
        super().batch_select_indices(indices)
        self._rooms.clear()  # otherwise those of all layers would stay in memory beside the rows that were chosen

    def _extended(self, name: str, held: torch.Tensor | None, new: torch.Tensor) -> torch.Tensor:
        assert held is not None
        length = held.shape[-2] if held.numel() else 0
        end, room = length + new.shape[-2], self._rooms.get(name)
        # Rows that were chosen or put in another order are a new tensor.
        if room is None or room.data_ptr() != held.data_ptr() or room.shape[-2] < end:
            room = new.new_empty(*new.shape[:-2], end + _ROOM, new.shape[-1])
            if length:
                room[..., :length, :] = held
            self._rooms[name] = room
        room[..., length:end, :] = new
        return room[..., :end, :]

    def _filled(self, name: str, new: torch.Tensor, filling: Filling) -> torch.Tensor:
        """`new` has shape [1, heads, tokens, width]."""
        if name not in self._rooms:
            # Zeros before the shorter rows: they get no attention, but nothing times NaN would be NaN.
            self._rooms[name] = new.new_zeros(filling.rows, new.shape[1], filling.width + _ROOM, new.shape[3])
        room = self._rooms[name]
        for rows, first, end in filling.places:
            room[rows, :, filling.width - (end - first) : filling.width] = new[0, :, first:end]
        return room[..., : filling.width, :]
