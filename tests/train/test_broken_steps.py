"""A step that is not finite: which of its rows are named, and where training can go on."""

import math

import numpy as np
import pytest
import torch

from posttrain.config.sections.datasets import DatasetConfig
from posttrain.conversation.masks import TokenRow
from posttrain.data.curriculum.curriculum import Draw
from posttrain.data.ledger import Ledger
from posttrain.data.step_plan import StepPlan
from posttrain.data.tokenized import from_rows
from posttrain.errors import RunError
from posttrain.runs import checkpoints
from posttrain.runs.directory import RunDirectory
from posttrain.train.broken_steps import (
    MicroBatchLosses,
    TrainedRows,
    last_checkpoint,
    place_of,
    require_finite,
    some_of,
)

# Six rows in micro-batches of two: slots 5 and 4, 3 and 2, 1 and 0.
DRAWS = tuple(Draw("a", row, 0, "one") for row in range(6))
PLAN = StepPlan(0, "one", DRAWS, (5, 4, 3, 2, 1, 0), 60, 30, 60, 30.0)


def told(losses: list[float]) -> str:
    rows = TrainedRows(lambda step: PLAN, lambda draw: f"a.jsonl:{draw.row + 1}")
    for loss in losses:
        kept = rows.losses.kept(torch.tensor(loss, requires_grad=True))
        assert kept.requires_grad
    return rows.told(0, 2)


def test_only_the_rows_of_the_micro_batch_that_broke_are_named():
    assert told([1.0, math.nan, 2.0]).startswith("it comes from a.jsonl:4, a.jsonl:3: ")
    assert told([math.inf, 1.0, math.nan]).startswith("it comes from a.jsonl:6, a.jsonl:5, a.jsonl:2, a.jsonl:1: ")


def test_where_every_micro_batch_broke_it_may_be_the_weights():
    assert told([math.nan] * 3) == (
        "each micro-batch has it, so it may be the weights and no row; the rows of the step: "
        "a.jsonl:6, a.jsonl:5, a.jsonl:4, a.jsonl:3, a.jsonl:2 and 1 more"
    )


def test_where_only_the_gradient_broke_the_first_rows_of_the_step_are_named():
    assert told([1.0, 1.0, 1.0]) == (
        "the rows of the step: a.jsonl:6, a.jsonl:5, a.jsonl:4, a.jsonl:3, a.jsonl:2 and 1 more"
    )


def test_a_new_step_forgets_the_losses_of_the_one_before():
    losses = MicroBatchLosses()
    losses.kept(torch.tensor(math.nan))
    losses.begin()
    losses.kept(torch.tensor(1.0))
    assert losses.broken() == []


def test_five_names_are_enough():
    assert some_of(["a", "b"]) == "a, b"
    assert some_of(list("abcdef")) == "a, b, c, d, e and 1 more"


def test_a_row_is_named_by_its_file_and_line_or_by_its_data_set_where_there_are_several_files():
    row = TokenRow([1, 2], [False, True])
    dataset = from_rows("a", [row] * 3, [(1, 1.0, 0), (4, 1.0, 1), (9, 1.0, 2)], Ledger("a"), "")
    later = dataset.subset(np.array([2, 1]), "a")
    place = place_of({"datasets.a": DatasetConfig(path="some/a.jsonl")}, {"a": later, "b": dataset})
    assert place(Draw("a", 0, 0, "one")) == "some/a.jsonl:9"
    assert place(Draw("b", 1, 0, "one")) == "datasets.b line 4"


def test_the_message_says_where_training_can_go_on(tmp_path):
    run = RunDirectory(tmp_path)
    assert last_checkpoint(run) == "no checkpoint had been written"
    for step in (2, 4):
        (run.trainer_private / f"checkpoint-{step}").mkdir(parents=True)
        checkpoints.publish(run, step, {})
    assert last_checkpoint(run).startswith(f"the last checkpoint is {tmp_path}/checkpoint-4: --resume goes on from it")


def test_the_lines_of_the_message_are_asked_for_only_where_a_step_broke():
    require_finite({"loss": 1.0, "grad_norm": 1.0}, 3, told=lambda: pytest.fail("nothing broke"))
    with pytest.raises(RunError, match=r"(?s)loss is nan at step 3.*model\.dtype.*\nthese rows$"):
        require_finite({"loss": math.nan}, 3, scaled=True, told=lambda: ["these rows"])
