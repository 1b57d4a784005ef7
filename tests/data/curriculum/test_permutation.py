"""The computed shuffle: a bijection for every size, different in every epoch, and uniform over positions."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.data.curriculum.permutation import mix64, permute, round_keys


def shuffled(size: int, keys: tuple[int, ...]) -> list[int]:
    return [permute(position, size, keys) for position in range(size)]


def test_the_mixer_is_splitmix64():
    # SplitMix64 adds this constant to its state and mixes. These are its known outputs for seed 1234567.
    step = 0x9E3779B97F4A7C15
    outputs = [mix64(1234567 + step * k) for k in range(1, 4)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(), st.text(max_size=5), st.integers(0, 10**6))
def test_each_row_comes_exactly_once(size, seed, dataset, epoch):
    assert sorted(shuffled(size, round_keys(seed, dataset, epoch))) == list(range(size))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 4095, 4096, 4097])
def test_sizes_around_powers_of_four_are_permuted(size):
    assert sorted(shuffled(size, round_keys(0, "chat", 0))) == list(range(size))


def test_one_row_stays_where_it_is():
    assert permute(0, 1, round_keys(7, "chat", 3)) == 0


def test_a_large_data_set_has_no_collisions_in_a_sample():
    size, keys = 10**12 + 39, round_keys(1, "web", 0)
    rows = [permute(position, size, keys) for position in range(0, size, size // 2000)]
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < size for row in rows)


def test_seed_data_set_and_epoch_each_change_the_order():
    orders = [
        shuffled(100, round_keys(*key)) for key in [(0, "a", 0), (1, "a", 0), (0, "b", 0), (0, "a", 1), (-1, "a", 0)]
    ]
    assert all(one != other for index, one in enumerate(orders) for other in orders[:index])


def test_names_that_end_in_digits_do_not_run_into_the_epoch():
    assert round_keys(0, "a1", 2) != round_keys(0, "a", 12)
    assert round_keys(1, "2", 3) != round_keys(12, "", 3)


@pytest.mark.parametrize("size", [5, 10, 16])
def test_every_row_is_equally_likely_at_every_position(size):
    # Over E epochs a cell (position, row) is hit E/size times on average, with a smaller variance; allow five sigma.
    epochs = 3000
    hits = Counter(
        (position, row)
        for epoch in range(epochs)
        for position, row in enumerate(shuffled(size, round_keys(11, "chat", epoch)))
    )
    expected = epochs / size
    cells = [hits[position, row] for position in range(size) for row in range(size)]
    assert max(abs(cell - expected) for cell in cells) < 5 * expected**0.5


@pytest.mark.parametrize(("position", "size"), [(-1, 5), (5, 5), (0, 0)])
def test_a_position_outside_the_data_set_is_refused(position, size):
    with pytest.raises(IndexError, match=str(position)):
        permute(position, size, round_keys(0, "chat", 0))
