"""The exact numbers of easy and replayed slots."""

from fractions import Fraction
from math import ceil, floor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.config.schedule import Schedule
from posttrain.dataserver.config.adaptive import easy_numbers, replay_slots

SHARES = st.integers(0, 100).map(lambda hundredths: hundredths / 100)
POINTS = st.dictionaries(st.integers(0, 60), SHARES, min_size=1, max_size=4)


def test_half_slots_alternate() -> None:
    share = Schedule({0: 0.3})
    assert [easy_numbers(share, draw, 1, 5) for draw in range(4)] == [
        range(0, 1),
        range(1, 3),
        range(3, 4),
        range(4, 6),
    ]


def test_a_falling_share_takes_fewer_rows_each_time() -> None:
    share = Schedule({0: 1.0, 4: 0.0})
    assert [len(easy_numbers(share, draw, 1, 4)) for draw in range(6)] == [4, 3, 2, 1, 0, 0]
    assert [len(easy_numbers(share, draw, 2, 4)) for draw in range(4)] == [4, 2, 0, 0]


def test_a_tenth_of_ten_slots_is_one_slot_however_long_the_run() -> None:
    share = Schedule({0: 0.1})
    assert all(len(easy_numbers(share, draw, 1, 10)) == 1 for draw in range(2000))
    assert easy_numbers(share, 2**40, 1, 10) == range(2**40, 2**40 + 1)


@settings(deadline=None)
@given(POINTS, st.integers(0, 80), st.integers(1, 7), st.integers(1, 9))
def test_no_easy_row_is_left_out_or_taken_twice(points: dict[int, float], draw: int, stride: int, slots: int) -> None:
    share = Schedule(points)
    here, after = (easy_numbers(share, number, stride, slots) for number in (draw, draw + 1))
    assert here.stop == after.start
    wanted = slots * share.at(stride * draw)
    assert floor(wanted) <= len(here) <= ceil(wanted)


@pytest.mark.parametrize(
    ("replay", "easy", "left", "chance", "slots"),
    [
        (0.25, 0.0, 8, 0.0, 2),
        (0.25, 0.0, 10, 0.49, 2),
        (0.25, 0.0, 10, 0.5, 3),
        (0.25, 0.5, 4, 0.9, 2),  # a quarter of all 8 slots; half of the 8 are easy
        (0.7, 0.3, 7, 0.999, 7),  # nothing is left for the curriculum
        (0.0, 0.3, 7, 0.999, 0),
        (0.0, 1.0, 0, 0.5, 0),
    ],
)
def test_replayed_slots(replay: float, easy: float, left: int, chance: float, slots: int) -> None:
    assert replay_slots(Fraction(str(replay)), Fraction(str(easy)), left, chance) == slots


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 100), st.integers(0, 40))
def test_replayed_slots_are_right_on_average(easy: int, share: int, left: int) -> None:
    replay = Fraction(share, 100) * Fraction(100 - easy, 100)
    counts = [replay_slots(replay, Fraction(easy, 100), left, step / 128) for step in range(128)]
    assert max(counts) <= left
    assert abs(Fraction(sum(counts), 128) - Fraction(share, 100) * left) <= Fraction(1, 128)
