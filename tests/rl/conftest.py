"""Fixtures for a tiny reinforcement-learning run that each test adapts."""

from pathlib import Path
from typing import Any

import pytest

from rl.rl_runs import WriteRun, run, write_run


@pytest.fixture
def a_run(tmp_path: Path, tiny_model: Path) -> WriteRun:
    """`a_run(name, data={...}, **sections)` writes a run's files to a new folder and returns the path of its config."""

    def write(name: str = "rl", **changes: Any) -> Path:
        return write_run(tmp_path / name, tiny_model, name=name, **changes)

    return write


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The config of a run that completed undisturbed in one process."""
    config = write_run(tmp_path_factory.mktemp("left_alone"), tiny_model)
    run(config)
    return config
