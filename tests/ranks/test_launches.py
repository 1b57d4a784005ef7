"""Processes that were not started alike end before anything is trained, with one message of the main process."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch import distributed

from dataserver.graders.services import free_port
from posttrain.base.processes import process_rank
from posttrain.errors import ConfigError
from posttrain.train.parallel.launch import require_agreement
from ranks.connected_ranks import on_ranks
from ranks.rank_runs import write_sft
from running import BIN

SEES_ALL = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/"]


def started(config: Path, *ranks: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """Run a process for each of `ranks`, which are the words before the command and the options after it."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(len(ranks))}
    processes = []
    for rank, words in enumerate(ranks):
        before = [word for word in words if not word.startswith(("--set", "--resume"))]
        after = [part for word in words if word not in before for part in word.split(maxsplit=1)]
        processes.append(
            subprocess.Popen(
                [*before, str(BIN / "toolkit-sft"), str(config), *after],
                env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return [
        subprocess.CompletedProcess(each.args, each.wait(), *told)
        for each, told in [(process, process.communicate(timeout=200)) for process in processes]
    ]


def told_by_the_first(finished: Sequence[subprocess.CompletedProcess[str]]) -> str:
    """The message of process 0; the others say nothing, and all have exit code 2."""
    assert [each.returncode for each in finished] == [2] * len(finished), finished
    assert [each.stdout + each.stderr for each in finished[1:]] == [""] * (len(finished) - 1)
    return finished[0].stderr


def test_another_config(tmp_path: Path, tiny_model: Path) -> None:
    config = write_sft(tmp_path, tiny_model)
    told = told_by_the_first(started(config, [], ["--set training.learning_rate=0.5"]))
    assert "config.training.learning_rate: 0.01 → 0.5" in told and told.count("error:") == 1
    assert not (tmp_path / "runs" / "run" / "manifest.json").exists()


def test_another_option(tmp_path: Path, tiny_model: Path) -> None:
    told = told_by_the_first(started(write_sft(tmp_path, tiny_model), [], ["--resume"]))
    assert "options.resume: False → True" in told and told.count("error:") == 1


def test_other_data(tmp_path: Path, tiny_model: Path) -> None:
    config = write_sft(tmp_path, tiny_model)
    others = tmp_path / "others.jsonl"
    others.write_text('{"prompt": "How many?", "completion": "Five."}\n' * 12)
    told = told_by_the_first(started(config, [], [*SEES_ALL, "--bind", str(others), str(tmp_path / "rows.jsonl")]))
    assert "datasets.a: " in told and told.count("error:") == 1
    assert not (tmp_path / "runs" / "run" / "manifest.json").exists()


def test_a_folder_that_one_machine_does_not_see(tmp_path: Path, tiny_model: Path) -> None:
    config = write_sft(tmp_path, tiny_model)
    (tmp_path / "runs").mkdir()
    told = told_by_the_first(started(config, [], [*SEES_ALL, "--tmpfs", str(tmp_path / "runs")]))
    assert "does not see" in told and "run.output_dir" in told and told.count("error:") == 1
    assert not (tmp_path / "runs" / "run" / "manifest.json").exists()


def told_of_versions() -> str:
    """What this process says, or its exit code, if each has another version of a package."""
    try:
        require_agreement({"packages": {"torch": f"2.{process_rank()}", "peft": "1.0"}})
    except ConfigError as error:
        distributed.barrier()  # at which the others wait for this process to end
        return str(error)
    except SystemExit as ending:
        return f"exit {ending.code}"
    return "nothing"


def test_another_version_of_a_package(tmp_path: Path) -> None:
    first, second, third = on_ranks(told_of_versions, tmp_path, ranks=3)
    assert "process 1 on" in first and "packages.torch: 2.0 → 2.1" in first and "peft" not in first
    assert (second, third) == ("exit 2", "exit 2")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_processes_that_were_started_alike_train(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    stages = [{"name": "one", "until_step": 2, "mix": {"a": 1}}]
    config = write_sft(tmp_path, tiny_model, stages=stages, parallel={"kind": kind})
    finished = started(config, [], SEES_ALL)
    assert [each.returncode for each in finished] == [0, 0], finished
    assert (tmp_path / "runs" / "run" / "result.json").is_file()
    assert not list((tmp_path / "runs" / "run").glob(".launch*"))
