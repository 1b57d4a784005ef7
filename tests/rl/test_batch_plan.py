"""Batch planning: whole groups, balanced over ranks, longest first, and no passes without anything to train."""

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.rl.generation import BatchPlan, plan_batch


class Step(NamedTuple):
    tokens: list[int]
    trained: list[bool]
    group: int
    micro_batch_size: int
    ranks: int


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A step whose completions fill all micro-batches of all ranks, as the config requires."""
    group, ranks, size = draw(st.integers(2, 6)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    unit = ranks * size
    groups = draw(st.integers(1, 4)) * unit
    count = groups * group
    tokens = draw(st.lists(st.integers(1, 50), min_size=count, max_size=count))
    trained = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    return Step(tokens, trained, group, size, ranks)


def planned(step: Step) -> BatchPlan:
    return plan_batch(step.tokens, step.trained, step.group, MicroBatchSize(step.micro_batch_size), step.ranks)


@given(steps())
def test_every_completion_is_planned_once_in_micro_batches_of_one_size(step: Step) -> None:
    plan = planned(step)
    rows = [row for of_rank in plan.micro_batches for rows in of_rank for row in rows]
    assert Counter(rows) == Counter(range(len(step.tokens)))
    assert {len(rows) for of_rank in plan.micro_batches for rows in of_rank} == {step.micro_batch_size}
    assert {len(of_rank) for of_rank in plan.micro_batches} == {len(step.tokens) // step.ranks // step.micro_batch_size}


@given(steps())
def test_a_group_is_on_one_rank_and_in_as_few_micro_batches_as_their_size_allows(step: Step) -> None:
    places: dict[int, set[tuple[int, int]]] = {}
    for rank, of_rank in enumerate(planned(step).micro_batches):
        for number, rows in enumerate(of_rank):
            for row in rows:
                places.setdefault(row // step.group, set()).add((rank, number))
            assert all(after == before + 1 or after % step.group == 0 for before, after in pairwise(rows))
    for found in places.values():
        assert len({rank for rank, _ in found}) == 1
        # Groups are contiguous, so one may start in the middle of a micro-batch.
        assert len(found) <= 1 + -(-(step.group - 1) // step.micro_batch_size)


@given(steps())
def test_the_passes_hold_all_that_is_trained_and_are_as_few_as_the_fullest_rank_needs(step: Step) -> None:
    plan = planned(step)
    needed = []
    for of_rank in plan.micro_batches:
        has_any = [any(step.trained[row] for row in rows) for rows in of_rank]
        assert not any(has_any[plan.passes :])
        needed.append(sum(has_any))
    assert plan.passes == max(1, *needed)


@given(steps())
def test_the_plan_of_one_more_call_is_the_same(step: Step) -> None:
    assert planned(step) == planned(step)


def test_ranks_get_as_nearly_as_many_tokens_as_whole_groups_allow() -> None:
    # Groups of 2 with 40, 30, 20 and 10 tokens: the longest is paired with the shortest.
    plan = plan_batch([20, 20, 15, 15, 10, 10, 5, 5], [True] * 8, group=2, at_once=MicroBatchSize(2), ranks=2)
    assert plan == BatchPlan((((0, 1), (6, 7)), ((2, 3), (4, 5))), passes=2)


def test_a_group_larger_than_a_micro_batch_is_cut_into_consecutive_ones_of_one_rank() -> None:
    plan = plan_batch([1] * 16, [True] * 16, group=8, at_once=MicroBatchSize(4), ranks=2)
    assert plan.micro_batches == (((0, 1, 2, 3), (4, 5, 6, 7)), ((8, 9, 10, 11), (12, 13, 14, 15)))


def test_groups_with_nothing_to_train_come_last_and_are_not_passed() -> None:
    trained = [False] * 4 + [True] * 4 + [False] * 4
    plan = plan_batch([9] * 4 + [1] * 4 + [9] * 4, trained, group=4, at_once=MicroBatchSize(4), ranks=1)
    assert plan == BatchPlan((((4, 5, 6, 7), (0, 1, 2, 3), (8, 9, 10, 11)),), passes=1)


def test_a_part_of_a_group_with_nothing_to_train_makes_room_for_the_other() -> None:
    plan = plan_batch([1] * 4, [False, False, True, False], group=4, at_once=MicroBatchSize(2), ranks=1)
    assert plan == BatchPlan((((2, 3), (0, 1)),), passes=1)


def test_one_pass_is_made_where_nothing_is_trained() -> None:
    assert plan_batch([1] * 4, [False] * 4, group=4, at_once=MicroBatchSize(2), ranks=1).passes == 1


def test_a_group_that_more_ranks_share_than_there_are_groups_is_cut_evenly() -> None:
    # One group of 4 on two ranks: half of it on each.
    plan = plan_batch([4, 3, 2, 1], [True] * 4, group=4, at_once=MicroBatchSize(1), ranks=2)
    assert plan.micro_batches == (((0,), (1,)), ((2,), (3,)))


def test_ranks_make_as_many_passes_whatever_fits_into_a_number_of_tokens() -> None:
    # 3 × 20 fit into 60 tokens on the first rank, then one is left; all 4 × 15 on the second, which are halved.
    plan = plan_batch([20, 20, 15, 15, 10, 10, 5, 5], [True] * 8, group=2, at_once=MicroBatchSize(1, 60), ranks=2)
    assert plan == BatchPlan((((0, 1, 6), (7,)), ((2, 3), (4, 5))), passes=2)
