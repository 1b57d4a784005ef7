"""Steps planned by a curriculum: each rank's micro-batches, the counters, and the rows of a broken step."""

import math

import numpy as np
import pytest

from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.masks import IGNORED_LABEL, TokenRow
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.curriculum.step_plan import StepPlan
from posttrain.data.ledger import Ledger
from posttrain.runs.resume import RunCounters
from posttrain.train.recipe import PlannedSteps, StepResult, place_of, step_facts
from token_rows import from_rows

# Six rows in micro-batches of two: slots 5 and 4, 3 and 2, 1 and 0.
DRAWS = tuple(Draw("a", row, 0, "one") for row in range(6))
PLAN = StepPlan(0, "one", DRAWS, ((5, 4), (3, 2), (1, 0)), 60, 30, 80, 30.0)
STEPS = PlannedSteps(lambda step: PLAN, lambda draw: f"a.jsonl:{draw.row + 1}")


def test_micro_batches_go_to_the_ranks_in_turn(monkeypatch: pytest.MonkeyPatch):
    assert [[draw.row for draw in rows] for rows in STEPS.micro_batches(0)] == [[5, 4], [3, 2], [1, 0]]
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    assert [[draw.row for draw in rows] for rows in STEPS.micro_batches(0)] == [[3, 2]]


def test_a_step_is_counted_and_told():
    counters = RunCounters()
    row = STEPS.count(StepResult(step=1, loss=0.5, grad_norm=2.0, learning_rate=1e-3, seconds=0.5), counters)
    assert (counters.step, counters.rows, counters.tokens, counters.trained_tokens) == (1, 6, 60, 30)
    # 60 of the 80 computed tokens are not padding; 60 tokens in half a second.
    assert (row["padding_share"], row["tokens_per_second"]) == (0.25, 120.0)
    assert (row["loss"], row["grad_norm"], row["learning_rate"]) == (0.5, 2.0, 1e-3)
    assert row["order_hash"] == counters.order_hash
    assert step_facts(row) == "120 tok/s  padding 25%"


def test_a_gradient_that_overflowed_is_written_as_null():
    row = STEPS.count(StepResult(1, 0.5, math.inf, 1e-3, 0.5), RunCounters())
    assert row["grad_norm"] is None


def test_only_the_rows_of_the_micro_batch_that_broke_are_named():
    assert STEPS.trained_in(0, [1]).startswith("it comes from a.jsonl:4, a.jsonl:3: ")
    assert STEPS.trained_in(0, [0, 2]).startswith("it comes from a.jsonl:6, a.jsonl:5, a.jsonl:2, a.jsonl:1: ")


def test_where_every_micro_batch_broke_it_may_be_the_weights():
    assert STEPS.trained_in(0, [0, 1, 2]) == (
        "every micro-batch is affected, so the cause may be the weights rather than a row; the rows of the step: "
        "a.jsonl:6, a.jsonl:5, a.jsonl:4, a.jsonl:3, a.jsonl:2 and 1 more"
    )


def test_where_only_the_gradient_broke_the_first_rows_of_the_step_are_named():
    assert STEPS.trained_in(0, []) == (
        "the rows of the step: a.jsonl:6, a.jsonl:5, a.jsonl:4, a.jsonl:3, a.jsonl:2 and 1 more"
    )


def test_a_row_is_named_by_its_file_and_line_or_by_its_data_set_where_there_are_several_files():
    row = TokenRow([1, 2], [False, True])
    dataset = from_rows("a", [row] * 3, [(1, 1.0, 0), (4, 1.0, 1), (9, 1.0, 2)], Ledger("a"), "")
    later = dataset.subset(np.array([2, 1]), "a")
    place = place_of({"datasets.a": DatasetConfig(path="some/a.jsonl")}, {"a": later, "b": dataset})
    assert place(Draw("a", 0, 0, "one")) == "some/a.jsonl:9"
    assert place(Draw("b", 1, 0, "one")) == "datasets.b line 4"


N = IGNORED_LABEL
