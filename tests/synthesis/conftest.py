"""A folder to sample in, and toolkit-data in this process."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from data_cases import DataCase, write_data_case
from typer.testing import CliRunner, Result

from posttrain.cli.data import main


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For matrices this small, a second thread costs more time than it saves."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def case(tmp_path: Path, tiny_model: Path) -> DataCase:
    return write_data_case(tmp_path, tiny_model)


@pytest.fixture
def data() -> Callable[..., Result]:
    """`data(*arguments)` runs toolkit-data in this process; `expect` is its exit code."""

    def run(*arguments: str | Path, expect: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == expect, result.output
        assert "Traceback" not in result.output
        return result

    return run
