"""What a small SFT config trains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.config.load import load_config
from posttrain.models.model_shape import TrainedModel
from posttrain.sft.config import SFTConfig


@pytest.fixture
def written_config(tiny_model: Path, tmp_path: Path) -> Callable[..., Path]:
    """`written_config(key=value, …)` is the file of a config of 3 steps with these keys changed."""

    def write(**changes: Any) -> Path:
        (tmp_path / "rows.jsonl").write_text(
            "".join(json.dumps({"prompt": f"{n}?", "completion": "ten " * n}) + "\n" for n in range(1, 9))
        )
        config = {
            "model": {"name": str(tiny_model), "dtype": "float32"},
            "lora": {"r": 8},
            "datasets": {"rows": {"path": "rows.jsonl"}},
            "stages": [{"name": "all", "until_step": 3, "mix": {"rows": 1}}],
            "training": {"rows_per_step": 4, "micro_batch_size": 2},
            "run": {"output_dir": str(tmp_path / "runs")},
            **changes,
        }
        path = tmp_path / "sft.yaml"
        path.write_text(json.dumps(config))
        return path

    return write


@pytest.fixture
def trained(written_config: Callable[..., Path]) -> Callable[..., TrainedModel]:
    """`trained(key=value, …)` is what such a config trains."""

    def of(**changes: Any) -> TrainedModel:
        return TrainedModel.of(load_config(written_config(**changes), SFTConfig), steps=3)

    return of
