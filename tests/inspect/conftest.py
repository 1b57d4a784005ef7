"""A finished run of each kind, and copies for tests to damage."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dpo.dpo_runs import write_run as write_dpo_run
from posttrain.config.load import load_config
from rl.rl_runs import train_here
from rl.rl_runs import write_run as write_rl_run
from sft.small_sft import train_sft, write_sft_run


@pytest.fixture(scope="session")
def sft_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return train_sft(write_sft_run(tmp_path_factory.mktemp("sft"), tiny_model), "sft")


@pytest.fixture(scope="session")
def dpo_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    from posttrain.dpo.config.dpo import DPOConfig
    from posttrain.dpo.train import train

    config = write_dpo_run(tmp_path_factory.mktemp("dpo"), tiny_model)
    train(load_config(config, DPOConfig), "dpo")
    return config.parent / "runs" / "dpo"


@pytest.fixture(scope="session")
def rl_run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    config = write_rl_run(tmp_path_factory.mktemp("rl"), tiny_model, training={"max_steps": 6})
    train_here(config)
    return config.parent / "runs" / "rl"


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[Path], Path]:
    """`copy_of(run)` copies the run's folder."""
    return lambda run: Path(shutil.copytree(run, tmp_path / "copies" / run.name))
