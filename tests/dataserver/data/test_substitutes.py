"""Substitutes for the prompts of an iteration: a pure function that keeps data sets and repeats no row early."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.dataserver_cases import make_config
from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.sampling import Sampler, Sides, Slot
from posttrain.dataserver.data.substitutes import Substitutes, Use, choose_substitutes
from posttrain.errors import ConfigError

NAMES = ["a", "b", "c"]


def whole(sizes: Mapping[str, int]) -> dict[str, Sides]:
    """Data sets without held-out rows."""
    return {name: Sides(range(size), np.arange(0)) for name, size in sizes.items()}


def plan_of(*rows: tuple[str, int]) -> list[Slot]:
    return [Slot(slot, *row) for slot, row in enumerate(rows)]


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[Slot], dict[str, Sides]]:
    """A plan over up to three data sets of 1 to 12 rows, some of them held out; it may ask a row several times."""
    sides = {}
    for name in NAMES[: draw(st.integers(1, 3))]:
        size = draw(st.integers(1, 12))
        train = sorted(draw(st.sets(st.integers(0, size - 1), min_size=1)))
        held_out = [row for row in range(size) if row not in train]
        sides[name] = Sides(np.array(train), np.array(held_out, dtype=np.int64))
    row = st.sampled_from([(name, int(index)) for name, side in sides.items() for index in side.train])
    return plan_of(*draw(st.lists(row, min_size=1, max_size=8))), sides


@given(plans(), st.integers(0, 3), st.integers(0, 50), st.integers(0, 6))
def test_a_substitute_is_another_training_row_and_none_repeats_before_all_are_used(
    made: tuple[list[Slot], dict[str, Sides]], seed: int, iteration: int, attempts: int
) -> None:
    plan, sides = made
    dealt = choose_substitutes(plan, sides, seed, iteration, attempts)
    assert len(dealt) == attempts
    for name, side in sides.items():
        rows = {int(row) for row in side.train}
        own = [slot.index for slot in plan if slot.dataset == name]
        used = {*own}
        for attempt in dealt:
            for slot, row in zip(plan, attempt, strict=True):
                if slot.dataset != name:
                    continue
                assert row in rows
                assert row != slot.index or len(rows) == 1
                assert row not in used or used == rows
                used.add(row)


@given(plans(), st.integers(0, 3), st.integers(0, 50))
def test_with_enough_rows_all_are_different(
    made: tuple[list[Slot], dict[str, Sides]], seed: int, iteration: int
) -> None:
    plan, _ = made
    counts = Counter(slot.dataset for slot in plan)
    # As many rows as there are slots and substitutes: not one too many.
    sides = whole({name: count * (1 + 4) for name, count in counts.items()})
    own = Counter[str]()
    distinct = []
    for slot in plan:
        distinct.append((slot.dataset, own[slot.dataset]))
        own[slot.dataset] += 1
    plan = plan_of(*distinct)
    dealt = choose_substitutes(plan, sides, seed, iteration, 4)
    rows = [(slot.dataset, slot.index) for slot in plan]
    rows += [(slot.dataset, row) for attempt in dealt for slot, row in zip(plan, attempt, strict=True)]
    assert len({*rows}) == len(rows) == len(plan) * 5


def test_rows_are_dealt_in_the_order_of_the_walk_attempt_by_attempt() -> None:
    plan = plan_of(("a", 0), ("b", 1), ("a", 7), ("a", 3))
    keys = round_keys(5, "substitute a", 9)
    walk = [row for row in (permute(position, 20, keys) for position in range(20)) if row not in (0, 3, 7)]
    dealt = choose_substitutes(plan, whole({"a": 20, "b": 20}), 5, 9, 3)
    assert [[attempt[place] for place in (0, 2, 3)] for attempt in dealt] == [walk[0:3], walk[3:6], walk[6:9]]


@given(plans(), st.integers(0, 5), st.integers(0, 5))
def test_an_attempt_does_not_depend_on_how_many_follow(
    made: tuple[list[Slot], dict[str, Sides]], few: int, more: int
) -> None:
    plan, sides = made
    assert choose_substitutes(plan, sides, 0, 1, few + more)[:few] == choose_substitutes(plan, sides, 0, 1, few)


def test_iterations_seeds_and_data_sets_have_orders_of_their_own() -> None:
    plan = plan_of(*((name, row) for name in "ab" for row in range(10)))
    sides = whole({"a": 1000, "b": 1000})
    found = [choose_substitutes(plan, sides, seed, iteration, 1)[0] for seed in (0, 1) for iteration in (0, 1)]
    orders = [tuple(rows[start : start + 10]) for rows in found for start in (0, 10)]
    assert len({*orders}) == 8


def test_a_data_set_of_one_row_has_only_that_row() -> None:
    assert choose_substitutes(plan_of(("a", 0), ("a", 0)), whole({"a": 1}), 0, 0, 2) == [[0, 0], [0, 0]]


def test_with_two_rows_each_slot_gets_the_other_one() -> None:
    plan = plan_of(("a", 0), ("a", 1), ("a", 0))
    assert choose_substitutes(plan, whole({"a": 2}), 0, 0, 3) == [[1, 0, 1]] * 3


def test_rows_for_later_come_after_all_others_and_rows_for_never_do_not_come() -> None:
    def use(dataset: str, row: int) -> Use:
        return "later" if row % 3 == 1 else "never" if row % 3 == 2 else "first"

    plan = plan_of(("a", 0), ("a", 3))
    dealt = choose_substitutes(plan, whole({"a": 12}), 0, 0, 5, use)
    rows = [row for attempt in dealt for row in attempt]
    assert {*rows[:2]} == {6, 9}
    assert {*rows[2:6]} == {1, 4, 7, 10}
    # Then it starts again, with the rows of the plan, each not in its own slot.
    assert {*rows[6:]} < {0, 1, 3, 4, 6, 7, 9, 10}
    assert dealt[3][0] != 0
    assert dealt[3][1] != 3


def test_rows_for_never_come_where_a_slot_would_have_no_other() -> None:
    dealt = choose_substitutes(plan_of(("a", 4)), whole({"a": 6}), 0, 0, 5, lambda _, row: ("first", "never")[row != 4])
    assert {row for (row,) in dealt} == {0, 1, 2, 3, 5}


SIZES = {"a": 40, "b": 25}


def served(**keys: object) -> tuple[DataserverConfig, Sampler, dict[str, Sides]]:
    config = make_config(Path("/data"), {name: {} for name in SIZES}, **{"prompts_per_iteration": 8, **keys})
    return config, Sampler(config, whole(SIZES)), whole(SIZES)


@given(st.data())
def test_requests_in_any_order_and_split_get_the_same_rows(data: st.DataObject) -> None:
    one, other = Substitutes(*served()), Substitutes(*served())
    asked = [(iteration, attempt, slot) for iteration in (2, 7) for attempt in (1, 2, 3, 4) for slot in range(8)]
    at_once = {
        (iteration, attempt, row.slot): row
        for iteration in (2, 7)
        for attempt in (1, 2, 3, 4)
        for row in one.slots(iteration, range(8), attempt)
    }
    for iteration, attempt, slot in data.draw(st.permutations(asked)):
        beside: Sequence[int] = data.draw(st.sampled_from([[], [(slot + 3) % 8]]))
        found = other.slots(iteration, [slot, *beside], attempt)
        assert found == [at_once[iteration, attempt, each] for each in (slot, *beside)]


def test_the_rows_of_the_plan_stay_and_so_do_the_data_sets_of_slots() -> None:
    config, sampler, sides = served()
    before = [sampler.slots(iteration, 0, 8, "train") for iteration in range(10)]
    substitutes = Substitutes(config, sampler, sides)
    for iteration, plan in enumerate(before):
        for attempt in (1, 2, 3, 4):
            found = substitutes.slots(iteration, range(8), attempt)
            assert [(row.slot, row.dataset) for row in found] == [(slot.slot, slot.dataset) for slot in plan]
            assert not {(row.dataset, row.index) for row in found} & {(slot.dataset, slot.index) for slot in plan}
    assert [sampler.slots(iteration, 0, 8, "train") for iteration in range(10)] == before


@pytest.mark.parametrize(
    ("iteration", "slots", "reason"),
    [(2, [0, 8], "there is no slot 8"), (3, [0], "iteration_stride"), (12, [0], "beyond the last stage")],
)
def test_slots_and_iterations_that_are_not_there_are_refused(iteration: int, slots: list[int], reason: str) -> None:
    substitutes = Substitutes(*served(iteration_stride=2, after_last_stage="refuse"))
    assert len(substitutes.slots(8, [0, 7], 1)) == 2
    with pytest.raises(ConfigError, match=reason):
        substitutes.slots(iteration, slots, 1)
