"""What an engine will lack is found before a model is loaded: here the models' folders have no weights at all."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from posttrain.cli.rl_train import main
from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.engines.open import engine_weights
from posttrain.rl.rollout.engines.requirements import outlined_model, require_engine_fits
from rl.rl_recipes import load
from rl.rl_runs import train_here, write_run
from rl.rollout.server_runs import Serve, serving, write

AHEAD = {"staleness": 1}


@pytest.fixture
def serve(tiny_model: Path) -> Iterator[Serve]:
    with serving(tiny_model) as serve:
        yield serve


def unloadable(model: Path, folder: Path, **changes: int) -> Path:
    """A copy of the model's folder without weights, whose config has these changes."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.fixture
def empty(tiny_model: Path, tmp_path: Path) -> Path:
    return unloadable(tiny_model, tmp_path / "empty")


@pytest.fixture
def huge(tiny_model: Path, tmp_path: Path) -> Path:
    """A model of more than 12 TiB: three matrices of 2³⁸ weights and more in each layer."""
    return unloadable(tiny_model, tmp_path / "huge", hidden_size=2**18, intermediate_size=2**20)


@pytest.mark.parametrize(
    "changes",
    [
        {"rollout": AHEAD},
        {"rollout": AHEAD, "lora": None},
        {"rollout": {"engine": "vllm", "sync": "weights"}},
        {"rollout": {"engine": "vllm", "sync": "weights"}, "lora": None, "model": {"dtype": "bfloat16"}},
        {"rollout": {"engine": "vllm", "sync": "adapter"}},
    ],
    ids=str,
)
def test_the_size_of_the_weights_is_known_without_them(
    changes: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    path = write_run(tmp_path, tiny_model, **changes)
    if "lora" in changes:
        path.write_text(path.read_text() + "lora: null\n")
    config = load_config(path, RLConfig)
    outlined = outlined_model(config, 8)
    assert outlined is not None
    weights = engine_weights(config, load(config))
    assert engine_weights(config, outlined).size == weights.size

    (written := tmp_path / "written").mkdir()
    weights.write(written)
    files = sum(each.stat().st_size for each in written.glob("*.safetensors"))
    assert files == pytest.approx(weights.size, rel=0.08, abs=20_000)  # with names, and LoRA's 7 % beside merged ones


def test_weights_without_room_are_refused_before_the_model_is_loaded(huge: Path, tmp_path: Path) -> None:
    rollout = {"engine": "vllm", "sync": "weights", "max_prompt_tokens": 64, **AHEAD}
    config = write_run(tmp_path, huge, rollout=rollout, evaluation=None)
    with pytest.raises(ConfigError, match=r"3 versions of the weights .* take .* GiB"):
        train_here(config)
    told = CliRunner().invoke(main, [str(config), "--dry-run"])
    assert told.exit_code == 2
    assert "3 versions of the weights" in told.output


def test_a_server_without_the_options_that_are_needed_is_refused_before_the_model_is_loaded(
    serve: Serve, empty: Path, tmp_path: Path
) -> None:
    server = serve()
    server.answers["openapi"].remove("/collective_rpc")
    config = write(tmp_path, empty, {"urls": [server.url]})
    with pytest.raises(ConfigError, match="lacks VLLM_SERVER_DEV_MODE=1"):
        train_here(config)
    told = CliRunner().invoke(main, [str(config), "--dry-run"])
    assert told.exit_code == 2
    assert "VLLM_SERVER_DEV_MODE=1" in " ".join(told.output.split())
    assert "/v1/completions" not in [path for path, _ in server.asked]


def test_a_server_that_does_not_answer_yet_is_left_to_the_run(serve: Serve, empty: Path, tmp_path: Path) -> None:
    server = serve()
    server.kill()
    config = load_config(write(tmp_path, empty, {"urls": [server.url]}), RLConfig)
    (told,) = require_engine_fits(config, tmp_path / "run", 8)
    assert f"{server.url} cannot be reached" in told
