"""A finished run of 6 steps with checkpoints at 3 and 6, and a way to push from it to a hub of our own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub_server import hub_server
from hub_store import TOKEN, HubServer
from sft.small_sft import train_sft, write_sft_run

CALL = "from posttrain.cli.push import main; main()"
Push = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder; not to be changed."""
    return train_sft(write_sft_run(tmp_path_factory.mktemp("trained"), tiny_model), "task")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run's folder, for one test."""
    return Path(shutil.copytree(trained, tmp_path / "runs" / "task"))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """An empty hub."""
    with hub_server() as server:
        yield server


@pytest.fixture
def push(run: Path, hub: HubServer, tmp_path: Path) -> Push:
    """`push("owner/name", ...)` runs toolkit-push for the run; `expect` is the exit code."""

    def call(*words: str | Path, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        finished = subprocess.run(
            [sys.executable, "-c", CALL, run / "config.yaml", *words],
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "HF_ENDPOINT": hub.url,
                "HF_TOKEN": TOKEN,
                "HF_HUB_OFFLINE": "0",
                "HF_HOME": str(tmp_path / "hub_cache"),
                **environment,
            },
        )
        assert finished.returncode == expect, finished.stderr
        assert TOKEN not in finished.stderr + finished.stdout
        return finished

    return call
