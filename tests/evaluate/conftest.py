"""A folder to evaluate in, a model with clear favourites, and the command in this process."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from eval_cases import Case, write_case
from typer.testing import CliRunner, Result

from posttrain.cli.eval import main
from sharp_model import write_adapter, write_sharp_model


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")


@pytest.fixture(scope="session")
def adapter(sharp_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(sharp_model, tmp_path_factory.mktemp("adapters") / "one")


@pytest.fixture
def case(tmp_path: Path, sharp_model: Path, adapter: Path) -> Case:
    return write_case(tmp_path, sharp_model, adapter)


@pytest.fixture(scope="session")
def run() -> Callable[..., Result]:
    """`run(*arguments)` runs toolkit-eval in this process; `expect` is its exit code."""

    def run_(*arguments: str | Path, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == expect, result.output
        assert "Traceback" not in result.output
        return result

    return run_


@pytest.fixture
def json_of() -> Callable[[Result], dict]:
    """The JSON object that a command printed."""
    return lambda result: json.loads(result.stdout)
