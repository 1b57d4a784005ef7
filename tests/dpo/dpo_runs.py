"""A small run of preference optimisation that tests bend to their needs, and its trainer in this process."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import in_process
from in_process import Training
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from running import BIN

# Four pairs of uneven lengths, each of a prompt of its own.
PAIRS = [
    {"prompt": "Say one", "chosen": "one", "rejected": "two three four five six seven eight nine ten"},
    {"prompt": "How many apples does Anna have?", "chosen": "She has 7 apples. " * 3, "rejected": "7"},
    {"prompt": "What is the capital of France? " * 3, "chosen": "Paris.", "rejected": "The capital is one two."},
    {"prompt": "And", "chosen": "so on and so forth " * 2, "rejected": "so on"},
]
# Others, from which validation is taken.
HELD_OUT = [
    {"prompt": f"Count to {n}", "chosen": "one two " * (n % 3 + 1), "rejected": "nine " * (n % 4 + 1)} for n in range(7)
]


def write_run(
    folder: Path, tiny_model: Path, name: str = "run", rows: Sequence[Mapping] = PAIRS, **sections: Any
) -> Path:
    """Write data and a config of three steps over all pairs, in float32; keywords replace whole sections, and `...`
    leaves one out."""
    write_rows(folder / "pairs.jsonl", rows)
    write_rows(folder / "held_out.jsonl", HELD_OUT)
    config = {
        "model": {"name": str(tiny_model), "dtype": "float32"},
        "lora": {"r": 4},
        "chat": {"max_length": 256},
        "datasets": {"a": {"path": "pairs.jsonl"}},
        "stages": [{"name": "one", "until_step": 3, "mix": {"a": 1}}],
        "training": TRAINING,
        "run": {"save_every": 50},
        **sections,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in config.items() if value is not ...}))
    return path


# Plain steps, so that two runs can be compared number by number.
TRAINING = {
    "rows_per_step": 4,
    "micro_batch_size": 4,
    "learning_rate": 1e-2,
    "schedule": "constant",
    "max_grad_norm": 0,
}


def write_rows(path: Path, rows: Sequence[Mapping]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass
class Built:
    """A training that is about to begin, with what it was built from."""

    config: DPOConfig
    training: Training

    @property
    def data(self) -> PreferenceData:
        return self.training.data

    @property
    def loaded(self) -> LoadedModel:
        return self.training.loaded

    @property
    def recipe(self) -> Any:
        return self.training.recipe

    @property
    def run(self) -> RunDirectory:
        return self.training.run

    def train(self) -> None:
        self.training.train()


def build(
    path: Path, *overrides: str, folder: str = "run", change: Callable[[PreferenceData], PreferenceData] | None = None
) -> Built:
    """Everything up to the first step of the run of a config, in this process; `change` makes other data of its own."""
    config = load_config(path, DPOConfig, list(overrides))
    return Built(config, in_process.dpo(config, path.parent / "built" / folder, change))


def load(config: DPOConfig) -> tuple[PreferenceData, LoadedModel]:
    """The data and the model of a config, as training has them."""
    backend = choose_backend(config.model)
    data = prepare_data(config, backend.load_tokenizer(config.model, chatml=True), lambda line: None)
    settings = TrainingSettings(chatml=True, max_length=256, gradient_checkpointing=False, seed=0)
    return data, backend.load_for_training(config.model, config.lora, settings=settings)


def training_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the lines of metrics.jsonl, those of optimizer steps."""
    return [row for row in rows if "loss" in row]


COMMAND = (str(BIN / "toolkit-dpo"),)


def run(config: Path, *options: str, processes: int = 1, expect: int = 0) -> Path:
    """A run as a process of its own, by torchrun where there are several; returns its folder."""
    launch = [str(BIN / "torchrun"), "--standalone", f"--nproc-per-node={processes}"]
    finished = subprocess.run(
        [*(launch if processes > 1 else []), *COMMAND, str(config), *options],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert finished.returncode == expect, finished.stderr
    return config.parent / "runs" / config.stem
