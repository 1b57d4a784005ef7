"""Which evaluation marks the best checkpoint, and what is written of one that gave no number."""

import math
from pathlib import Path

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments

from posttrain.base.console import TrainingProgress
from posttrain.runs.counters import RunCounters
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics
from posttrain.train.callbacks import CheckpointCallback
from posttrain.train.step_log import StepLog
from posttrain.train.watchdogs import Watch


def saved(tmp_path: Path, losses: list[float]) -> list[bool]:
    """Whether each evaluation asked for a checkpoint, transformers' own record of the best being kept as it does."""
    callback = CheckpointCallback(RunDirectory(tmp_path), RunCounters(), 2, best="loss")
    state, asked = TrainerState(), []
    for step, loss in enumerate(losses, start=1):
        state.global_step, control = step, TrainerControl()
        callback.on_evaluate(TrainingArguments(), state, control, metrics={"eval_loss": loss})
        asked.append(control.should_save)
        if state.best_metric is None or loss < state.best_metric:
            state.best_metric = loss
    return asked


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([2.0, 1.5, 1.75, 1.25], [True, True, False, True]),
        ([math.nan, 2.0, 2.5, 1.0], [False, True, False, True]),
        ([2.0, math.nan, 1.5], [True, False, True]),
        ([math.nan, math.nan], [False, False]),
        ([math.inf, 3.0], [False, True]),
    ],
)
def test_the_best_evaluation_is_the_lowest_number_and_never_one_that_is_none(
    tmp_path: Path, losses: list[float], best: list[bool]
) -> None:
    assert saved(tmp_path, losses) == best


def test_an_evaluation_without_a_number_is_null_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunDirectory(tmp_path)
    log = StepLog(run, TrainingProgress(8), Watch([]))

    log.write_evaluation(4, {"eval_loss": math.nan, "eval_rows": 3}, "validation loss nan")

    assert read_metrics(run.metrics) == [{"step": 4, "eval_loss": None, "eval_rows": 3}]
    first, second = capsys.readouterr().err.splitlines()
    assert first == "step 4: validation loss nan"
    assert second.startswith("warning at step 4: eval_loss is not finite, so no checkpoint is the best by it: look at ")
