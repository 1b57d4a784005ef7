"""A folder with a config and a model with clear favourites, and the command in this process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_cases import Told
from typer.testing import CliRunner

from posttrain.cli.chat import main
from sharp_model import write_sharp_model


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")


@pytest.fixture
def config(tmp_path: Path, sharp_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`task.yaml` in the current folder: 12 sampled tokens an answer."""
    monkeypatch.chdir(tmp_path)
    sections: dict[str, Any] = {
        "model": {"name": str(sharp_model), "backend": "hf", "dtype": "float32"},
        "generation": {"max_new_tokens": 12, "temperature": 1.0, "seed": 3},
    }
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(sections))
    return tmp_path / "task.yaml"


@pytest.fixture
def talk(config: Path) -> Callable[..., Told]:
    """`talk(*lines)` pipes lines into toolkit-chat; `options` and `expect`, the exit code, may be given."""

    def talk_(*lines: str | bytes, options: tuple[str, ...] = (), expect: int = 0) -> Told:
        given = b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines)
        result = CliRunner().invoke(main, [str(config), "--weights", "base", *options], input=given)
        assert result.exit_code == expect, result.output
        assert "Traceback" not in result.output
        return Told(result.stdout, result.stderr)

    return talk_


@pytest.fixture
def rows() -> Callable[[str], list[dict[str, Any]]]:
    """`rows(name)` reads a file of rows in the current folder."""
    return lambda name: [json.loads(line) for line in Path(name).read_text(encoding="utf-8").split("\n")[:-1]]
