"""Real W&B, Trackio and MLflow, all offline, keep what a run sends them, and each step once after a kill and a resume.

`make test-extras` runs this in an environment that has them.
"""

import json
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.runs.manifest import read_manifest
from posttrain.train.trackers import run_trackers
from running import metrics
from sft.small_sft import train_sft, write_sft_run
from train.trackers.wandb_file import records

pytestmark = pytest.mark.extras

SECRETS = {"WANDB_API_KEY": "wandb-nobody-" + "s" * 27, "HF_TOKEN": "hf-nobody", "MLFLOW_TRACKING_TOKEN": "ml-nobody"}
LEARNT = ("checkpoint-3", "checkpoint-4", "checkpoint-5", "best", "latest", "result.json", "adapter_model.safetensors")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where everything is kept; trackers may reach no other machine."""
    folder = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**SECRETS, "WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio")}.items():
            environment.setenv(name, value)
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            environment.setenv(name, "http://127.0.0.1:9")
        environment.setattr(run_trackers, "CLOSE_SECONDS", 300.0)  # MLflow first makes its database
        yield folder


@pytest.fixture(scope="module")
def run(folder: Path, tiny_model: Path) -> Path:
    """A run of 5 steps that was killed after its step 5, with its newest checkpoint at step 2, and resumed."""
    trackers = [
        "tensorboard",
        {"kind": "wandb", "project": "apples", "entity": "growers", "tags": ["red", "sweet"]},
        {"kind": "trackio", "project": "apples"},
        {"kind": "mlflow", "uri": f"sqlite:///{folder}/mlflow.db", "experiment": "apples", "tags": {"colour": "red"}},
    ]
    config = write_sft_run(folder, tiny_model, run={"save_every": 2, "keep_checkpoints": 9, "trackers": trackers})
    steps = "training.max_steps=5"
    run = train_sft(config, "run", steps)
    for path in [run / name for name in LEARNT]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    train_sft(config, "run", steps, resume=True)
    assert "tracker_failures" not in read_manifest(run / "manifest.json")
    return run


@pytest.fixture(scope="module")
def losses(run: Path) -> dict[int, float]:
    """The loss of each step, from the run itself."""
    return {row["step"]: row["loss"] for row in metrics(run) if "loss" in row}


@pytest.fixture(scope="module")
def held_out(run: Path) -> dict[int, float]:
    return {row["step"]: row["eval_loss"] for row in metrics(run) if "eval_loss" in row}


def once(pairs: list[tuple[int, float]]) -> Any:
    """Values by step, to compare; a step that is there twice fails the test."""
    assert len(dict(pairs)) == len(pairs), pairs
    return pytest.approx(dict(pairs))


def test_the_run_is_the_one_that_it_would_be_without_trackers(run: Path, folder: Path, tiny_model: Path) -> None:
    alone = folder / "alone"
    alone.mkdir()
    config = write_sft_run(alone, tiny_model, run={"save_every": 2, "keep_checkpoints": 9})
    assert metrics(train_sft(config, "run", "training.max_steps=5")) == metrics(run)


def test_wandb_has_one_run_in_two_parts(run: Path, losses: dict[int, float], held_out: dict[int, float]) -> None:
    files = sorted((run / "wandb").glob("offline-run-*/*.wandb"))
    parts = [list(records(file)) for file in files]
    assert len(parts) == 2
    begun = [next(record.run for record in part if record.HasField("run")) for part in parts]
    (known,) = {(each.run_id, each.entity, each.project, each.display_name, *each.tags) for each in begun}
    remembered = json.loads((run / "trackers.json").read_text())["wandb"]
    assert known == (remembered["id"], "growers", "apples", "run", "red", "sweet")
    assert any(item.key == "training" for item in begun[0].config.update)

    rows = [
        {"".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for part in parts
        for record in part
        if record.HasField("history")
    ]
    assert once([(row["_step"], row["train/loss"]) for row in rows if "train/loss" in row]) == losses
    assert once([(row["_step"], row["eval/loss"]) for row in rows if "eval/loss" in row]) == held_out


def test_trackio_has_one_run(run: Path, folder: Path, losses: dict[int, float], held_out: dict[int, float]) -> None:
    import trackio  # pyright: ignore[reportMissingImports]

    (kept,) = trackio.Api().runs("apples")
    assert kept.name == "run" and kept.config["training"]["rows_per_step"] == 4
    with sqlite3.connect(folder / "trackio" / "apples.db") as database:
        rows = [(step, json.loads(text)) for step, text in database.execute("SELECT step, metrics FROM metrics")]
    assert once([(step, row["train/loss"]) for step, row in rows if "train/loss" in row]) == losses
    assert once([(step, row["eval/loss"]) for step, row in rows if "eval/loss" in row]) == held_out


def test_mlflow_has_one_run(folder: Path, losses: dict[int, float], held_out: dict[int, float]) -> None:
    from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

    client = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    experiment = client.get_experiment_by_name("apples")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert (kept.info.run_name, kept.info.status) == ("run", "FINISHED")
    assert kept.data.tags["colour"] == "red"
    assert kept.data.params["training.rows_per_step"] == "4"
    for name, wanted in (("train/loss", losses), ("eval/loss", held_out)):
        assert once([(each.step, each.value) for each in client.get_metric_history(kept.info.run_id, name)]) == wanted


def test_no_tracker_writes_a_secret(run: Path, folder: Path) -> None:
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {".db", ".wandb", ".log"} <= {path.suffix for path in kept}
    assert [path for path, content in kept.items() for secret in SECRETS.values() if secret.encode() in content] == []


def test_trackers_that_fail_are_counted_and_the_run_goes_on(
    folder: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """W&B without a key, MLflow whose server is away, and Trackio with a server but no token."""
    import wandb  # pyright: ignore[reportMissingImports]

    wandb.teardown()  # or it would go on with what it has read from the environment
    failing = folder / "failing"
    failing.mkdir()
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("HOME", str(failing))  # where `wandb login` keeps keys
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9")
    trackers = ["wandb", {"kind": "mlflow", "uri": "http://127.0.0.1:9"}, "trackio", "tensorboard"]
    config = write_sft_run(failing, tiny_model, run={"trackers": trackers})
    run = train_sft(config, "run", "training.max_steps=2")

    assert len([row for row in metrics(run) if "loss" in row]) == 2
    failures = read_manifest(run / "manifest.json")["tracker_failures"]
    assert failures.keys() == {"wandb", "mlflow", "trackio"}
    lines = len(metrics(run))
    assert all((each["lines"], each["not_sent"]) == (lines, lines) for each in failures.values())
    said = capsys.readouterr().err.splitlines()
    for name in failures:
        assert len([line for line in said if line.startswith(f"warning: {name} cannot be started")]) == 1
    assert "WANDB_API_KEY" in failures["wandb"]["first_error"]


def test_a_run_of_trackio_that_another_one_has_taken_the_place_of_is_left_alone(run: Path, folder: Path) -> None:
    from posttrain.config.sections.trackers import TrackioConfig
    from posttrain.errors import RunError
    from posttrain.train.trackers.tracker import TrackedRun
    from posttrain.train.trackers.trackio import Trackio

    config, told = TrackioConfig(kind="trackio", project="pears"), TrackedRun(run, {})
    first, second = (Trackio(config, told) for _ in range(2))
    earlier = first.open(None).remembered
    for each in (first, second):
        if each is second:
            assert each.open(None).remembered != earlier
        each.log({"train/loss": 1.0}, 1)
        each.close("finished")
    again = Trackio(config, told)
    with pytest.raises(RunError, match="another run named run"):
        again.open(earlier)
    again.close("failed")


def test_wandb_keeps_neither_code_nor_the_terminal(run: Path) -> None:
    kept = {path.name for path in (run / "wandb").rglob("*") if path.is_file()}
    assert not kept & {"diff.patch", "output.log", "code"}
