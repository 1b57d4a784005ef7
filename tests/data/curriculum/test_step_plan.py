"""The rows and micro-batches of each optimizer step, and their token counts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.data.curriculum.step_plan import RowSizes, StepPlanner

SIZES = {
    "a": RowSizes(lengths=[10, 4, 7, 4], trained_counts=[5, 1, 2, 3], weights=[1.0, 2.0, 0.5, 1.0]),
    "b": RowSizes(lengths=[20, 1], trained_counts=[9, 0], weights=[0.25, 1.0]),
}


def planner(micro_batch_size: int = 2, rows_per_step: int = 4, steps: int = 6) -> StepPlanner:
    stages = [Stage("first", 2, {"a": 1}), Stage("second", steps, {"a": 1, "b": 1})]
    curriculum = Curriculum(stages, {name: len(sizes.lengths) for name, sizes in SIZES.items()}, rows_per_step, 0)
    return StepPlanner(curriculum, SIZES, MicroBatchSize(micro_batch_size))


def test_the_longest_row_comes_first_and_equal_ones_keep_the_order_of_their_slots():
    plan = planner().plan(0)
    lengths = {slot: SIZES["a"].lengths[draw.row] for slot, draw in enumerate(plan.draws)}
    assert [lengths[slot] for slot in plan.order] == [10, 7, 4, 4]
    assert plan.order[2] < plan.order[3]


def test_the_counts_of_a_step_are_those_of_its_rows():
    # Step 0 draws each of the four rows of "a" once.
    plan = planner().plan(0)
    assert sorted(draw.row for draw in plan.draws) == [0, 1, 2, 3]
    assert (plan.step, plan.stage) == (0, "first")
    assert plan.tokens == 10 + 4 + 7 + 4
    assert plan.trained_tokens == 5 + 1 + 2 + 3
    assert plan.loss_weight == 1.0 * 5 + 2.0 * 1 + 0.5 * 2 + 1.0 * 3


@pytest.mark.parametrize(
    ("micro_batch_size", "computed"),
    [
        (1, 25),  # no padding: 10 + 7 + 4 + 4
        (2, 28),  # 2 × 10, then 2 × 4
        (4, 40),  # 4 × 10
    ],
)
def test_every_micro_batch_is_padded_to_its_own_longest_row(micro_batch_size, computed):
    assert planner(micro_batch_size).plan(0).computed_tokens == computed


def test_a_step_of_a_later_stage_says_so():
    assert [planner().plan(step).stage for step in range(4)] == ["first", "first", "second", "second"]


def test_a_row_that_is_drawn_twice_counts_twice():
    # Eight rows per step out of the four of "a": each is drawn twice.
    plan = planner(rows_per_step=8).plan(0)
    assert plan.tokens == 2 * 25
    assert plan.loss_weight == 2 * 11.0


def test_a_step_beyond_the_last_is_refused():
    with pytest.raises(IndexError):
        planner().plan(6)


def test_steps_can_be_planned_in_any_order():
    forwards, backwards = planner(), planner()
    assert [forwards.plan(step) for step in range(6)] == [backwards.plan(step) for step in range(5, -1, -1)][::-1]


@st.composite
def _runs(draw):
    """(row sizes, weights of one stage, rows per step, divisors of rows per step, steps, seed)"""
    datasets = {}
    for name in draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True)):
        rows = draw(st.integers(1, 6))
        lengths = draw(st.lists(st.integers(1, 30), min_size=rows, max_size=rows))
        trained = [draw(st.integers(0, length)) for length in lengths]
        weights = draw(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=rows, max_size=rows))
        datasets[name] = RowSizes(lengths, trained, weights)
    rows_per_step = draw(st.integers(1, 12))
    divisors = [size for size in range(1, rows_per_step + 1) if rows_per_step % size == 0]
    mix = {name: draw(st.integers(1, 4)) for name in datasets}
    return datasets, mix, rows_per_step, divisors, draw(st.integers(1, 4)), draw(st.integers(0, 5))


@given(_runs())
def test_micro_batches_change_the_padding_and_nothing_else(run):
    datasets, mix, rows_per_step, divisors, steps, seed = run
    sizes = {name: len(each.lengths) for name, each in datasets.items()}
    curriculum = Curriculum([Stage("only", steps, mix)], sizes, rows_per_step, seed)
    for step in range(steps):
        plans = [StepPlanner(curriculum, datasets, MicroBatchSize(size)).plan(step) for size in divisors]
        assert {plan.draws for plan in plans} == {tuple(curriculum.step(step))}
        assert len({(plan.order, plan.tokens, plan.trained_tokens, plan.loss_weight) for plan in plans}) == 1
        computed = [plan.computed_tokens for plan in plans]
        assert computed[0] == plans[0].tokens
        assert all(plan.tokens <= plan.computed_tokens <= computed[-1] for plan in plans)


@given(_runs())
def test_the_plans_hold_every_draw_of_the_steps_once_longest_row_first(run):
    datasets, mix, rows_per_step, divisors, steps, seed = run
    sizes = {name: len(each.lengths) for name, each in datasets.items()}
    curriculum = Curriculum([Stage("only", steps, mix)], sizes, rows_per_step, seed)
    planned = StepPlanner(curriculum, datasets, MicroBatchSize(divisors[-1]))
    plans = [planned.plan(step) for step in range(steps)]
    ordered = [plan.draws[slot] for plan in plans for slot in plan.order]
    assert Counter(ordered) == Counter(draw for step in range(steps) for draw in curriculum.step(step))
    lengths = [datasets[draw.dataset].lengths[draw.row] for draw in ordered]
    for start in range(0, len(lengths), rows_per_step):
        step_lengths = lengths[start : start + rows_per_step]
        assert step_lengths == sorted(step_lengths, reverse=True)


@given(_runs())
def test_the_loss_weight_is_the_sum_of_weight_times_trained_tokens(run):
    datasets, mix, rows_per_step, _, steps, seed = run
    sizes = {name: len(each.lengths) for name, each in datasets.items()}
    plan = StepPlanner(
        Curriculum([Stage("only", steps, mix)], sizes, rows_per_step, seed), datasets, MicroBatchSize(1)
    ).plan(0)
    # The terms are multiples of 1/4, so the sum is exact in any order.
    assert plan.loss_weight == sum(
        datasets[draw.dataset].weights[draw.row] * datasets[draw.dataset].trained_counts[draw.row]
        for draw in plan.draws
    )
