"""All runs in a folder, in one table."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from posttrain.base.locks import process_lock
from posttrain.cli.runs import main
from posttrain.inspect.folders import read_run
from posttrain.inspect.listing import list_runs


@pytest.fixture
def folder(sft_run: Path, dpo_run: Path, rl_run: Path, tmp_path: Path) -> Path:
    """A run of each kind, one of them in a subfolder, and entries that are not runs."""
    runs = tmp_path / "runs"
    for run, name in ((sft_run, "sft"), (dpo_run, "several/first"), (rl_run, "rl")):
        shutil.copytree(run, runs / name)
    (runs / "notes").mkdir()
    (runs / "rl.dataserver.log").write_text("said something\n")
    return runs


def test_each_run_is_told_with_what_it_came_to(folder: Path, rl_run: Path, sft_run: Path):
    rl, several, sft = list_runs(folder)
    assert [rl.name, several.name, sft.name] == ["rl", "several/first", "sft"]
    assert [rl.kind, several.kind, sft.kind] == ["rl", "dpo", "sft"]
    assert [(each.step, each.last_step) for each in (rl, several, sft)] == [(6, 6), (3, 3), (6, 6)]
    assert {each.status for each in (rl, several, sft)} == {"finished"}
    run = read_run(sft_run)
    assert sft.latest == f"loss {run.result['loss']:.4f}"
    losses = [(row["eval_loss"], row["step"]) for row in run.rows if "eval_loss" in row]
    assert [step for _, step in losses] == [0, 3, 6]
    assert sft.best == f"{min(losses)[0]:.4f} at {min(losses)[1]}"
    assert sft.tokens == run.result["tokens"]
    assert sft.seconds == pytest.approx(run.result["seconds"], abs=0.1)
    reward = read_run(rl_run).result["reward"]
    assert (rl.latest, rl.tokens) == (f"reward {reward:.4f}", read_run(rl_run).result["tokens"])
    assert several.best == ""


def test_a_run_is_running_as_long_as_its_lock_is_held(folder: Path):
    (folder / "sft" / "result.json").unlink()
    (folder / "sft" / ".lock").write_text('{"pid": 1, "host": "left", "since": "by a kill"}')
    assert [each.status for each in list_runs(folder)] == ["finished", "finished", "interrupted"]
    with process_lock(folder / "sft" / ".lock"), process_lock(folder / "begun" / ".lock"):
        begun, *_, sft = list_runs(folder)
    assert sft.status.startswith("running (")
    # Data is being read: only the lock exists so far.
    assert (begun.name, begun.kind, begun.step, begun.last_step) == ("begun", "", 0, None)
    assert begun.status == sft.status


def test_the_steps_of_a_run_that_was_interrupted_are_those_of_its_config(folder: Path):
    for name in ("rl", "sft", "several/first"):
        (folder / name / "result.json").unlink()
    config = folder / "rl" / "config.yaml"
    config.write_text(config.read_text().replace("max_steps: 6", "max_steps: null"))
    # Unless the config sets it, only the dataserver knows the number of RL steps.
    assert [each.last_step for each in list_runs(folder)] == [None, 3, 6]


def test_a_damaged_run_does_not_hide_the_others(folder: Path):
    (folder / "sft" / "manifest.json").write_text("{")
    assert [each.status.partition(":")[0] for each in list_runs(folder)] == ["finished", "finished", "damaged"]


def test_the_table_has_a_row_for_each_run(folder: Path, tmp_path: Path):
    listed = CliRunner().invoke(main, ["list", str(folder)])
    assert listed.exit_code == 0
    rows = [line.split() for line in listed.stdout.splitlines()]
    assert [row[:4] for row in rows if row[1:2] == ["sft"]] == [["sft", "sft", "6/6", "finished"]]
    own = CliRunner().invoke(main, ["list", str(folder / "sft")])
    assert "sft" in own.stdout and "rl" not in own.stdout.replace("held", "")
    empty = CliRunner().invoke(main, ["list", str(folder / "notes")])
    assert (empty.exit_code, empty.stdout) == (0, f"there are no runs in {folder / 'notes'}\n")
    missing = CliRunner().invoke(main, ["list", str(tmp_path / "none")])
    assert missing.exit_code == 2
    assert missing.stderr.startswith(f"error: there is no folder {tmp_path / 'none'}; ")
