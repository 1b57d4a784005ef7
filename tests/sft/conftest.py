"""A small SFT run that the tests in this folder adapt."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from forked_command import in_processes, run_forked
from running import BIN


def word_problem(number: int, length: int = 1) -> dict[str, Any]:
    return {"prompt": f"How many is {number}? " * length, "completion": f"{number} apples " * (number % 5 + 1)}


@pytest.fixture
def write_config(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    """Write two data sets and a config of 8 steps over two stages; keywords replace whole sections."""

    def write(name: str = "run", **sections: Any) -> Path:
        for file, start in (("a.jsonl", 0), ("b.jsonl", 100), ("held_out.jsonl", 200)):
            rows = [word_problem(number, length=number % 4 + 1) for number in range(start, start + 12)]
            (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
        config: dict[str, Any] = {
            "model": {"name": str(tiny_model)},
            "lora": {"r": 4, "dropout": 0.1},
            "chat": {"max_length": 256},
            "datasets": {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}},
            "stages": [
                {"name": "one", "until_step": 4, "mix": {"a": 1}},
                {"name": "two", "until_step": 8, "mix": {"a": 1, "b": 2}},
            ],
            "training": {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2},
            "run": {"save_every": 3, "keep_checkpoints": 9},
        }
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**config, **sections}))
        return path

    return write


@pytest.fixture
def toolkit() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a toolkit command in its own process."""

    def run(
        *arguments: str | Path, processes: int = 1, expect: int = 0, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        program, *rest = command = [str(argument) for argument in arguments]
        if program.startswith("toolkit-") and (processes == 1 or expect == 0):
            finished = run_forked(in_processes(processes, command), environment=environment)
        else:
            launch = [str(BIN / "torchrun"), f"--nproc-per-node={processes}", "--standalone"] if processes > 1 else []
            finished = subprocess.run(
                [*launch, shutil.which(program, path=BIN) or program, *rest],
                capture_output=True,
                text=True,
                timeout=240,
                env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            )
        assert finished.returncode == expect, finished.stderr
        return finished

    return run
