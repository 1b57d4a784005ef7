"""A folder with a config and a model with clear favourites, and the command in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from predict_cases import Task
from typer.testing import CliRunner, Result

from posttrain.cli.predict import main
from sharp_model import write_adapter, write_sharp_model


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has 1000 positions, as a prompt with tools takes 500."""
    folder = write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1000}))
    return folder


@pytest.fixture(scope="session")
def adapters(sharp_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three adapters that give different answers."""
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(sharp_model, folder / str(seed), seed) for seed in range(3)]


@pytest.fixture
def task(tmp_path: Path, sharp_model: Path) -> Task:
    """`task.yaml` asks for 8 greedy tokens, 4 answers at once."""
    config: dict[str, Any] = {
        "model": {"name": str(sharp_model), "backend": "hf", "dtype": "float32"},
        "generation": {"max_new_tokens": 8, "batch_size": 4},
        "stages": "not read by toolkit-predict",
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(config))
    return Task(tmp_path)


@pytest.fixture
def run() -> Callable[..., Result]:
    """`run(*arguments)` runs toolkit-predict in this process; `expect` is its exit code."""

    def run_(*arguments: str | Path, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == expect, result.output
        assert "Traceback" not in result.output
        return result

    return run_
