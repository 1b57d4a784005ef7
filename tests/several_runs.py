"""Run several of the toolkit's commands in one process, because importing unsloth takes longer than a tiny run."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from running import metrics

# unsloth patches their classes, so they must be imported after it.
REWRITTEN = ("transformers", "peft", "trl")
# The file that records which of them had been imported before unsloth.
BEFORE_UNSLOTH = "before_unsloth.json"

Command = Sequence[str | Path]


def in_one_process(*commands: Command, folder: Path, **environment: str) -> str:
    """Run commands in one subprocess with the current folder `folder` and return its stdout."""
    words = [[str(word) for word in command] for command in commands]
    finished = subprocess.run(
        [sys.executable, __file__, json.dumps(words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=540,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def command(program: str, config: Path, name: str, *overrides: str) -> list[str]:
    """The command line of a run called `name`, with overrides."""
    return [program, str(config), "--run-name", name, *(word for each in overrides for word in ("--set", each))]


def numbers(run: Path, *names: str) -> list[list[Any]]:
    """These columns of the optimizer steps in metrics.jsonl."""
    return [[row[name] for name in names] for row in metrics(run) if "loss" in row]


def require_close_weights(one: Path, other: Path, *, within: float, file: str = "adapter_model.safetensors") -> None:
    """Assert that two runs ended with the same weights, within floating-point rounding."""
    weights, others = load_file(one / file), load_file(other / file)
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], atol=within, rtol=0, msg=lambda text, name=name: name + text)


class _Observer:
    """An import finder that finds nothing and records what was imported before unsloth."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "unsloth":
            there = [module for module in REWRITTEN if module in sys.modules]
            Path(BEFORE_UNSLOTH).write_text(json.dumps(there))


def _run(words: list[str]) -> None:
    program, *options = words
    [script] = entry_points(group="console_scripts", name=program)
    try:
        script.load()(options)
    except SystemExit as done:
        if done.code:
            raise


if __name__ == "__main__":
    sys.meta_path.insert(0, _Observer())  # pyright: ignore[reportArgumentType]
    for each in json.loads(sys.argv[1]):
        _run(each)
