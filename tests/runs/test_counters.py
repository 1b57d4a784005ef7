"""Totals of a run, which survive a resume exactly."""

import json

from posttrain.data.curriculum.curriculum import Curriculum, Stage
from posttrain.data.curriculum.order_hash import order_hash_after
from posttrain.data.step_plan import RowSizes, StepPlanner
from posttrain.runs.counters import RunCounters

SIZES = RowSizes(lengths=[10, 20, 30], trained_counts=[1, 2, 3], weights=[1.0, 1.0, 1.0])
CURRICULUM = Curriculum([Stage("only", 4, {"a": 1})], {"a": 3}, rows_per_step=3, seed=0)
PLANNER = StepPlanner(CURRICULUM, {"a": SIZES}, 1)


def test_each_step_adds_its_rows_tokens_and_seconds():
    # Every step draws each of the three rows once: 60 tokens, 6 of them trained.
    counters = RunCounters()
    counters.advance(PLANNER.plan(0), 0.5)
    counters.advance(PLANNER.plan(1), 0.25)
    assert (counters.step, counters.rows, counters.tokens, counters.trained_tokens) == (2, 6, 120, 12)
    assert counters.seconds == 0.75


def test_the_order_hash_is_the_one_that_the_curriculum_gives_for_as_many_steps():
    counters = RunCounters()
    for step in range(4):
        assert counters.order_hash == order_hash_after(CURRICULUM, step)
        counters.advance(PLANNER.plan(step), 1.0)
    assert counters.order_hash == order_hash_after(CURRICULUM, 4)


def test_counters_from_a_checkpoint_go_on_as_if_nothing_had_been():
    straight, resumed = RunCounters(), RunCounters()
    for step in range(4):
        straight.advance(PLANNER.plan(step), 0.1)
        resumed = RunCounters(**json.loads(json.dumps(resumed.as_dict())))
        resumed.advance(PLANNER.plan(step), 0.1)
    assert resumed == straight
