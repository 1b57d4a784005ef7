"""A small in-process run of supervised fine-tuning, also used by tests in other folders."""

import json
from pathlib import Path
from typing import Any

import yaml

from posttrain.config.load import load_config


def write_sft_run(folder: Path, model: Path, **sections: Any) -> Path:
    """Write two data sets and a config of 6 steps over two stages; keywords replace whole sections."""
    for name, start in (("a", 0), ("b", 50), ("held_out", 100)):
        rows = [{"prompt": f"Say {n}", "completion": f"{n} apples " * (n % 4 + 1)} for n in range(start, start + 7)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "model": {"name": str(model)},
        "lora": {"r": 4, "dropout": 0.1},
        "chat": {"max_length": 256},
        "datasets": {"a": {"path": "a.jsonl"}, "b": {"path": "b.jsonl"}},
        "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 3},
        "stages": [
            {"name": "one", "until_step": 2, "mix": {"a": 1}},
            {"name": "two", "until_step": 6, "mix": {"a": 1, "b": 2}},
        ],
        "training": {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2},
        "run": {"save_every": 3, "keep_checkpoints": 9},
        **sections,
    }
    path = folder / "sft.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train_sft(config: Path, name: str, *overrides: str, **options: bool) -> Path:
    """Train in this process; returns the run's folder."""
    from posttrain.sft.config import SFTConfig
    from posttrain.sft.train import train

    train(load_config(config, SFTConfig, list(overrides)), name, **options)
    return config.parent / "runs" / name
