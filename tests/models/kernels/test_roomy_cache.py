"""A cache with room for more tokens holds what transformers' own cache holds."""

import weakref

import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.cache_utils import DynamicLayer

from posttrain.models.kernels.roomy_cache import RoomyLayer, roomy_cache

CHANGES = st.one_of(
    st.integers(1, 90).map(lambda tokens: ("update", tokens)),
    st.lists(st.integers(0, 2), min_size=3, max_size=3).map(lambda rows: ("choose", rows)),
    st.integers(1, 3).map(lambda tokens: ("crop", tokens)),
)


@given(st.lists(CHANGES, max_size=6), st.integers(0, 2**31))
def test_what_is_added_chosen_and_taken_away_is_the_same(changes: list[tuple[str, int | list[int]]], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ours, theirs = RoomyLayer(), DynamicLayer()
    for name, value in [("update", 5), *changes]:
        if isinstance(value, list):
            for layer in (ours, theirs):
                layer.batch_select_indices(torch.tensor(value))
        elif name == "crop":
            for layer in (ours, theirs):
                layer.crop(-min(value, layer.get_seq_length() - 1))
        else:
            new = [torch.randn(3, 2, value, 4, generator=generator) for _ in range(2)]
            for found, expected in zip(ours.update(*new), theirs.update(*new), strict=True):
                assert torch.equal(found, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()


def test_tokens_are_written_where_there_is_room_and_not_all_copied() -> None:
    layer = RoomyLayer()
    first, _ = layer.update(torch.zeros(1, 1, 10, 4), torch.zeros(1, 1, 10, 4))
    for _ in range(64):
        more, _ = layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))
        assert more.data_ptr() == first.data_ptr()
    assert layer.update(torch.ones(1, 1, 1, 4), torch.ones(1, 1, 1, 4))[0].data_ptr() != first.data_ptr()


def test_rows_that_are_left_out_take_no_memory_any_more() -> None:
    layer = RoomyLayer()
    keys, _ = layer.update(torch.zeros(4, 1, 10, 2), torch.zeros(4, 1, 10, 2))
    room = weakref.ref(keys._base)
    del keys
    layer.batch_select_indices(torch.tensor([0, 2]))
    assert room() is None


def test_layers_that_see_a_window_keep_the_cache_of_transformers() -> None:
    whole = roomy_cache(LlamaConfig(num_hidden_layers=2))
    assert [type(layer) for layer in whole.layers] == [RoomyLayer, RoomyLayer]
    windowed = roomy_cache(LlamaConfig(num_hidden_layers=2, sliding_window=8))
    assert RoomyLayer not in {type(layer) for layer in windowed.layers}
