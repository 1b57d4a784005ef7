"""Small multi-process runs of each trainer: their files, their processes, and the output of each process."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from dpo.dpo_runs import TRAINING
from dpo.dpo_runs import write_run as write_dpo
from forked_command import in_processes, run_forked
from rl.rl_runs import write_run as write_rl
from running import BIN, metrics

# On a busy machine, imports alone may take a process a minute.
_LONGEST_SECONDS = 250.0


@dataclass(frozen=True)
class Trainer:
    """A command and its config writer: `write(folder, model, name)` returns the config's path.

    Attributes:
        kill_at: a step in the middle of the run, after its first checkpoint.
    """

    command: str
    write: Callable[[Path, Path, str], Path]
    kill_at: int


def write_sft(folder: Path, model: Path, /, name: str = "run", **sections: Any) -> Path:
    """Write rows of uneven lengths and a config of 40 steps with dropout; keywords replace whole sections."""
    rows = [
        {"prompt": f"How many is {n}? " * (n % 4 + 1), "completion": f"{n} apples " * (n % 5 + 1)} for n in range(12)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": str(model)},
        "lora": {"r": 4, "dropout": 0.1},
        "chat": {"max_length": 256},
        "datasets": {"a": {"path": "rows.jsonl"}},
        "stages": [{"name": "one", "until_step": 40, "mix": {"a": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2},
        "run": {"save_every": 4, "keep_checkpoints": 99},
        **sections,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def _dpo(folder: Path, model: Path, name: str) -> Path:
    return write_dpo(
        folder,
        model,
        name,
        lora={"r": 4},
        stages=[{"name": "one", "until_step": 40, "mix": {"a": 1}}],
        training={**TRAINING, "micro_batch_size": 2, "schedule": "cosine"},
        run={"save_every": 4, "keep_checkpoints": 99},
    )


def _rl(folder: Path, model: Path, name: str) -> Path:
    return write_rl(folder, model, name=name)


TRAINERS = {
    "sft": Trainer("toolkit-sft", write_sft, kill_at=6),
    "dpo": Trainer("toolkit-dpo", _dpo, kill_at=6),
    "grpo": Trainer("toolkit-rl-train", _rl, kill_at=3),
}


def words(command: str, config: Path, *options: str, processes: int = 2) -> list[str]:
    """The command under torchrun, which logs each process's output to its own files."""
    launch = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={processes}"]
    logs = ["--redirects=3", f"--log-dir={_logs(config)}"]
    return [*launch, *logs, str(BIN / command), str(config), *options]


@contextmanager
def started(command: str, config: Path, *options: str, processes: int = 2) -> Iterator[subprocess.Popen[bytes]]:
    """A multi-process run that is still running; all its processes are killed at the end."""
    with config.with_suffix(".launcher.log").open("ab") as log:
        launcher = subprocess.Popen(
            words(command, config, *options, processes=processes),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield launcher
    finally:
        left = psutil.Process(launcher.pid).children() if launcher.poll() is None else []
        for process in (launcher, *left):
            process.kill()
        launcher.wait()


def run(command: str, config: Path, *options: str, processes: int = 2, expect: int = 0) -> Path:
    """Run to the end; returns the run's folder."""
    with started(command, config, *options, processes=processes) as launcher:
        code = launcher.wait(_LONGEST_SECONDS)
    assert code == expect, [said(config, rank) for rank in range(processes)]
    return folder_of(config)


def alone(command: str, config: Path, *options: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run to the end in a single process."""
    finished = run_forked([command, config, *options], timeout=_LONGEST_SECONDS)
    assert finished.returncode == expect, finished.stderr
    return finished


def together(
    command: str, config: Path, *options: str, processes: int = 2, expect: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run to the end in several processes, which are forks, so that nothing is imported again."""
    finished = run_forked(in_processes(processes, [command, config, *options]), timeout=_LONGEST_SECONDS)
    assert finished.returncode == expect, finished.stdout + finished.stderr
    return finished


def ranks_of(launcher: subprocess.Popen[bytes]) -> dict[int, psutil.Process]:
    """The training processes by rank."""
    return {int(each.environ()["RANK"]): each for each in psutil.Process(launcher.pid).children()}


def said(config: Path, rank: int) -> str:
    """What a process of the latest launch wrote to stdout and stderr."""
    launches = sorted(_logs(config).iterdir(), key=lambda launch: launch.stat().st_mtime_ns)
    return "".join(
        (launches[-1] / "attempt_0" / str(rank) / name).read_text(errors="replace")
        for name in ("stdout.log", "stderr.log")
    )


def wait_for_step(config: Path, step: int, launcher: subprocess.Popen[bytes]) -> None:
    """Wait until metrics.jsonl has `step` optimizer steps; fails if the run ends first."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    file = folder_of(config) / "metrics.jsonl"
    while not (file.exists() and file.read_text().count('"loss"') >= step):
        assert launcher.poll() is None, "the run ended"
        assert time.monotonic() < deadline, "too late"
        time.sleep(0.005)


def folder_of(config: Path) -> Path:
    """The folder of a config's run."""
    return config.parent / "runs" / config.stem


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The optimizer-step lines of metrics.jsonl, without times."""
    return [row for row in metrics(folder) if "loss" in row]


def newest_checkpoint(folder: Path) -> Path:
    """The checkpoint with the highest step."""
    return max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.removeprefix("checkpoint-")))


def _logs(config: Path) -> Path:
    return config.parent / f"{config.stem}.ranks"
