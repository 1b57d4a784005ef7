"""A small preference-optimisation run that tests adapt, as a process or with its trainer in this process."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import in_process
from forked_command import in_processes, run_forked
from in_process import Training
from posttrain.config.load import load_config
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.data import PreferenceData, prepare_data
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.load import choose_backend
from posttrain.runs.directory import RunDirectory
from running import BIN

# Four pairs of uneven lengths, each with its own prompt.
PAIRS = [
    {"prompt": "Say one", "chosen": "one", "rejected": "two three four five six seven eight nine ten"},
    {"prompt": "How many apples does Anna have?", "chosen": "She has 7 apples. " * 3, "rejected": "7"},
    {"prompt": "What is the capital of France? " * 3, "chosen": "Paris.", "rejected": "The capital is one two."},
    {"prompt": "And", "chosen": "so on and so forth " * 2, "rejected": "so on"},
]
# Other pairs, for validation.
HELD_OUT = [
    {"prompt": f"Count to {n}", "chosen": "one two " * (n % 3 + 1), "rejected": "nine " * (n % 4 + 1)} for n in range(7)
]


def write_run(
    folder: Path, tiny_model: Path, name: str = "run", rows: Sequence[Mapping] = PAIRS, **sections: Any
) -> Path:
    """Write the data and a config of three float32 steps over all pairs; keywords replace sections, `...` omits one."""
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


# Constant learning rate and no clipping, so two runs can be compared number by number.
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
    """A training run that has not started yet, and its config."""

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
    """Set up the run of a config in this process, up to its first step; `change` may replace the data."""
    config = load_config(path, DPOConfig, list(overrides))
    return Built(config, in_process.dpo(config, path.parent / "built" / folder, change))


def load(config: DPOConfig) -> tuple[PreferenceData, LoadedModel]:
    """The data and the model of a config, loaded as for training."""
    backend = choose_backend(config.model)
    data = prepare_data(config, backend.load_tokenizer(config.model, chatml=True), lambda line: None)
    settings = TrainingSettings(
        chatml=True,
        max_length=256,
        gradient_checkpointing=False,
        seed=0,
        padding_free=config.training.padding_free,
    )
    return data, backend.load_for_training(config.model, config.lora, settings=settings)


def training_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl that belong to optimizer steps."""
    return [row for row in rows if "loss" in row]


COMMAND = (str(BIN / "toolkit-dpo"),)


def run(config: Path, *options: str, processes: int = 1, expect: int = 0) -> Path:
    """Run toolkit-dpo in its own process, or in several with torchrun, and return the run's folder."""
    finished = run_forked(in_processes(processes, [*COMMAND, str(config), *options]))
    assert finished.returncode == expect, finished.stderr
    return config.parent / "runs" / config.stem
