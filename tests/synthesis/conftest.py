"""A folder to sample in, and toolkit-data in this process."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_cases import DataCase, write_data_case
from typer.testing import CliRunner, Result
from words_server import WordsServer, words_server

from posttrain.cli.data import main


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture
def case(tmp_path: Path, tiny_model: Path) -> DataCase:
    return write_data_case(tmp_path, tiny_model)


@pytest.fixture(scope="session")
def answers(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the kept answers of an unchanged case."""
    case = write_data_case(tmp_path_factory.mktemp("answered"), tiny_model)
    run_data("run", case.config)
    return case.output / "kept" / "answers"


@pytest.fixture
def answered(case: DataCase, answers: Path) -> DataCase:
    """A case whose prompts have been answered, but nothing more."""
    shutil.copytree(answers, case.output / "kept" / "answers")
    return case


@pytest.fixture
def served(case: DataCase) -> Iterator[WordsServer]:
    """The server that answers in the place of the case's model."""
    with words_server() as (server, url):
        case.change(model={"url": url, "model": "words"})
        yield server


@pytest.fixture
def data() -> Callable[..., Result]:
    """`data(*arguments)` runs toolkit-data in this process; `expect` is its exit code."""
    return run_data


def run_data(*arguments: str | Path, expect: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == expect, result.output
    assert "Traceback" not in result.output
    return result
