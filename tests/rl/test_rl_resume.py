"""A run that is killed and resumed matches an undisturbed run bit for bit."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataserver.serving import serving, still_running
from posttrain.config.load import load_config
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.config import RLConfig
from posttrain.rl.train import config_identity
from rl.rl_runs import (
    WriteRun,
    folder_of,
    journal,
    require_same_runs,
    server_pid,
    started,
    train_here,
    wait_for_step,
)


def test_a_killed_run_goes_on_bit_for_bit(left_alone: Path, a_run: WriteRun) -> None:
    # Dropout is on. Checkpoints are at steps 2, 4 and 6, so at least step 5 is trained twice.
    killed = a_run()
    with started(killed) as process:
        wait_for_step(killed, 5, process)
        server = psutil.Process(server_pid(killed))
        family = [server, *server.children(recursive=True)]
    assert not (folder_of(killed) / "result.json").exists()
    # The dataserver notices that its trainer is gone, and stops with its graders.
    assert still_running(family, 30) == []

    train_here(killed, resume=True)

    require_same_runs(killed, left_alone)
    # Steps that were trained twice sent the same requests with the same ids, so the journal has them once.
    assert journal(killed) == journal(left_alone)


# GRPO has a KL divergence, whose reference is a second adapter.
REUSED = {
    "algorithm": "grpo",
    "data": {"prompts_per_iteration": 4, "iteration_stride": 2},
    "rollout": {"steps_per_generation": 2},
    "training": {"max_steps": 6},
    "evaluation": {"prompts": 2, "samples": 1},
}


@pytest.fixture
def reusing(a_run: WriteRun) -> Iterator[WriteRun]:
    """Like `a_run`, with generations that serve two optimizer steps and one server for all runs."""
    with serving(a_run("server", **REUSED).with_name("data.yaml")) as server:
        dataserver = {"config": None, "url": server.url}
        yield lambda name: a_run(name, **REUSED, dataserver=dataserver)


def test_a_run_whose_generations_are_reused_goes_on_bit_for_bit_from_where_one_begins(reusing: WriteRun) -> None:
    whole, parts = reusing("whole"), reusing("parts")
    train_here(whole)
    train_here(parts, ("training.max_steps=3",))

    # The generation of steps 2 and 3 (from 0) is half used at checkpoint-3.
    with pytest.raises(ConfigError, match=r"checkpoint of step 3 lies in the middle.* resume from one of step 2 or 4"):
        train_here(parts, resume=True)
    shutil.rmtree(folder_of(parts) / "checkpoint-3")
    train_here(parts, resume=True)

    require_same_runs(parts, whole, last=6)
    rows = [json.loads(line) for line in (folder_of(whole) / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "loss" in row]
    assert all(row["kl"] > 1e-4 for row in steps[2:])
    # Every other step generates nothing, so it has no reward.
    assert [row.get("reward") is not None for row in steps] == [True, False] * 3
    assert [row["seconds"]["generate"] > 0 for row in steps] == [True, False] * 3


@pytest.mark.parametrize(("section", "key"), [("run", "save_every"), ("evaluation", "every")])
def test_a_save_or_an_evaluation_in_the_middle_of_a_generation_is_refused_before_anything_starts(
    a_run: WriteRun, section: str, key: str
) -> None:
    changes = {**REUSED, section: {key: 3}}
    config = a_run(**changes)
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: 3 falls in the middle.*choose a multiple of 2"):
        train_here(config)
    assert not (config.parent / "runs").exists()


def test_a_resume_that_would_be_another_run_is_refused_and_told_what_changed(left_alone: Path) -> None:
    before = (folder_of(left_alone) / "metrics.jsonl").read_bytes()
    changes = {
        "rollout.temperature": "1.0 → 0.9",
        "training.seed": "0 → 1",
        "training.micro_batch_size": "4 → 2",
        "algorithm": "dr_grpo → dapo",
        "lora.r": "4 → 8",
    }
    overrides = tuple(f"{key}={change.split()[-1]}" for key, change in changes.items())
    with pytest.raises(ConfigError, match="this would not be the same run, so it is not resumed") as refusal:
        train_here(left_alone, overrides, resume=True)
    assert [line.strip() for line in str(refusal.value).splitlines()[1:-1]] == sorted(
        f"{key}: {change}" for key, change in changes.items()
    )
    assert (folder_of(left_alone) / "metrics.jsonl").read_bytes() == before


def test_a_limit_may_change_at_a_resume_if_no_number_depends_on_it(a_run: WriteRun) -> None:
    replay = {"share": 0.5, "fill": "reserved"}

    def identity(**rollout: Any) -> dict[str, Any]:
        return config_identity(load_config(a_run(rollout={"replay": replay, **rollout}), RLConfig))

    assert identity() == identity(stop_without_signal=99) == identity(max_age=5)
    assert identity() != identity(replay={**replay, "max_bytes": 99})  # then fewer groups can be replayed


def test_a_resume_with_other_prompts_is_refused(left_alone: Path, tmp_path: Path) -> None:
    config = tmp_path / "copy" / left_alone.name
    shutil.copytree(left_alone.parent, config.parent)
    rows = config.with_name("a.jsonl").read_text()
    config.with_name("a.jsonl").write_text(rows.replace("Say 3 apples", "Say 3 pears"))
    with pytest.raises(ServerError, match=r"config_id is \w+, but the run has \w+"):
        train_here(config, resume=True)


def test_a_finished_run_is_neither_trained_again_nor_overwritten(left_alone: Path) -> None:
    first = json.loads((folder_of(left_alone) / "result.json").read_text())
    log = folder_of(left_alone).with_name("rl.dataserver.log")
    said = log.read_bytes()
    assert train_here(left_alone, ("training.max_steps=8",), resume=True) == first
    assert log.read_bytes() == said  # no server was started
    assert train_here(left_alone, resume=True) == first
    with pytest.raises(ConfigError, match="--resume, replace it with --overwrite"):
        train_here(left_alone)
