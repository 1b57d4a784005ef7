"""Configurable training runs on a CUDA device, as processes."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from running import BIN, metrics

HAS_VLLM = find_spec("vllm") is not None
HAS_BITSANDBYTES = find_spec("bitsandbytes") is not None
HAS_FLASH_ATTENTION = find_spec("flash_attn") is not None
HAS_LIGER = find_spec("liger_kernel") is not None
BACKENDS = ["hf", *["unsloth"] * (find_spec("unsloth") is not None)]
ENGINES = ["hf", *["vllm"] * HAS_VLLM]
PRECISION = 0.05
"""Between losses of runs that compute the same in different ways: in bfloat16, 6 nats have 3 significant digits."""


def write_sft(folder: Path, model: Path, /, **sections: Any) -> Path:
    """Write a config of three steps; dict keywords are merged into its sections, and None replaces one."""
    rows = [{"prompt": f"How many is {n}? " * (n % 4 + 1), "completion": f"{n} apples"} for n in range(12)]
    return _write(folder, "sft", model, rows, sections)


def write_dpo(folder: Path, model: Path, /, **sections: Any) -> Path:
    """Like `write_sft`, for preferences."""
    rows = [
        {"prompt": f"How many is {n}?", "chosen": f"{n} apples", "rejected": "none " * (n % 3)} for n in range(1, 9)
    ]
    rows = [row for row in rows if row["rejected"]]
    return _write(folder, "dpo", model, rows, sections)


def _write(folder: Path, name: str, model: Path, rows: list[dict[str, Any]], sections: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "model": {"name": str(model), "backend": "hf"},
        "lora": {"r": 4},
        "chat": {"max_length": 256},
        "datasets": {"a": {"path": f"{name}.jsonl"}},
        "stages": [{"name": "one", "until_step": 3, "mix": {"a": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-3},
    }
    for section, change in sections.items():
        config[section] = {**config.get(section, {}), **change} if isinstance(change, dict) else change
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def losses(command: str, config: Path, *options: str) -> list[float]:
    """The loss of each optimizer step of a run, which must succeed."""
    return [row["loss"] for row in steps(command, config, *options)]


def steps(command: str, config: Path, *options: str) -> list[dict[str, Any]]:
    """The metrics of each optimizer step of a run, which must succeed."""
    run_to_its_end(command, config, *options)
    return [row for row in metrics(config.parent / "runs" / config.stem) if "loss" in row]


def run_to_its_end(command: str, *words: str | Path) -> None:
    """Run the command, which must succeed."""
    finished = start(command, *words)
    assert finished.returncode == 0, finished.stderr


def start(command: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, whatever its exit code."""
    return subprocess.run([str(BIN / command), *map(str, words)], capture_output=True, text=True, timeout=500)
