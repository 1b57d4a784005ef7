"""The trackers of a run: which numbers they get, and what is kept about them in its folder."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from posttrain.base.console import TrainingProgress
from posttrain.config.sections.run import RunConfig
from posttrain.errors import RunError, RunInterrupted
from posttrain.runs.directory import RunDirectory
from posttrain.runs.manifest import read_manifest
from posttrain.train.record.step_log import StepLog
from posttrain.train.trackers import run_trackers
from posttrain.train.trackers.run_trackers import RunTrackers, last_logged
from posttrain.train.trackers.tracker import End, Opened, Remembered, TrackedRun
from posttrain.train.watchdogs import Watch


class Listed:
    """Keeps the lines of all runs, and what it was told, in a list of the class."""

    seen: list[Any]

    def __init__(self, config: Any, run: TrackedRun) -> None:
        self.kind = config.kind

    def open(self, remembered: Remembered | None) -> Opened:
        self.seen.append((self.kind, remembered))
        return Opened("a list", {"id": f"{self.kind}-1"}, {})

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.kind == "wandb":
            raise OSError("away")
        self.seen.append((step, values))

    def close(self, end: End) -> None:
        self.seen.append(end)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lists stand in for the services, which are not installed here."""
    Listed.seen = []
    monkeypatch.setattr(run_trackers, "TRACKERS", dict.fromkeys(run_trackers.TRACKERS, Listed))
    return Listed.seen


def trackers(run: RunDirectory, *names: str) -> RunTrackers:
    configs = RunConfig.model_validate({"trackers": names}).trackers
    return RunTrackers(configs, run, TrackedRun(run.path, {}), {})


def test_numbers_are_sent_with_their_kind_and_nothing_else_is(seen: list[Any], tmp_path: Path) -> None:
    sending = trackers(RunDirectory(tmp_path), "mlflow")
    sending.log("train", 3, {"step": 3, "stage": "one", "loss": 0.5, "rows": 4, "seconds": {"all": 1.0}, "norm": None})
    assert sending.close("failed") == {}
    assert seen == [("mlflow", None), (3, {"train/loss": 0.5, "train/rows": 4}), "failed"]


def test_a_resume_is_told_what_each_tracker_wanted_to_have_remembered(seen: list[Any], tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for names in (["mlflow", "trackio"], ["trackio", "tensorboard"], ["mlflow"]):
        trackers(run, *names).close("stopped")
    asked = [each for each in seen if each != "stopped"]
    first = [("mlflow", None), ("trackio", None)]
    second = [("trackio", {"id": "trackio-1"}), ("tensorboard", None)]
    assert sorted(asked[:2]) == first
    assert sorted(asked[2:4], key=str) == sorted(second, key=str)
    assert asked[4:] == [("mlflow", {"id": "mlflow-1"})]
    assert set(json.loads(run.trackers.read_text())) == {"mlflow", "trackio", "tensorboard"}


@pytest.mark.parametrize("damage", ["", "[]", '{"mlflow": 3}', "\udcff"])
def test_a_damaged_file_of_remembered_runs_counts_as_absent(seen: list[Any], tmp_path: Path, damage: str) -> None:
    run = RunDirectory(tmp_path)
    run.trackers.write_bytes(damage.encode("utf-8", "surrogateescape"))
    trackers(run, "mlflow").close("finished")
    assert seen[0] == ("mlflow", None)


def test_the_failures_of_one_tracker_are_its_own(seen: list[Any], tmp_path: Path) -> None:
    sending = trackers(RunDirectory(tmp_path), "wandb", "mlflow")
    for step in (1, 2):
        sending.log("train", step, {"loss": 0.5})
    failures = sending.close("finished")
    assert failures == {"wandb": {"lines": 2, "not_sent": 2, "first_error": "failed at step 1: away"}}
    assert [each for each in seen if isinstance(each[0], int)] == [(1, {"train/loss": 0.5}), (2, {"train/loss": 0.5})]


def test_the_last_steps_are_those_of_the_metrics(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert last_logged(run) == {}
    rows = [{"step": 0, "eval_loss": 2.0}, {"step": 1, "loss": 1.0}, {"step": 2, "loss": 1.0}]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert last_logged(run) == {"eval": 0, "train": 2}


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (None, "finished"),
        (RunInterrupted("Ctrl-C", 130), "stopped"),
        (KeyboardInterrupt(), "stopped"),
        (RunError("loss is nan"), "failed"),
    ],
)
def test_trackers_are_told_how_training_ended_and_the_manifest_what_they_failed_at(
    seen: list[Any], tmp_path: Path, error: BaseException | None, end: End
) -> None:
    run = RunDirectory(tmp_path)
    run.write_json(run.manifest, {"identity": {}})
    log = StepLog(run, TrainingProgress(1), Watch([]), trackers(run, "mlflow", "wandb"))
    with suppress(RunError, KeyboardInterrupt), log.showing(0):
        log.write({"step": 1, "stage": "one", "loss": 0.5}, "a fact")
        log.write_evaluation(1, {"eval_loss": 0.25}, "a measure")
        if error is not None:
            raise error
    assert [each for each in seen if each in ("finished", "stopped", "failed")] == [end, end]
    assert (1, {"train/loss": 0.5}) in seen and (1, {"eval/loss": 0.25}) in seen
    failures = read_manifest(run.manifest)["tracker_failures"]
    assert failures == {"wandb": {"lines": 2, "not_sent": 2, "first_error": "failed at step 1: away"}}
