"""Launches that would cut the model into pieces are refused by every trainer, in one message and before anything is
written."""

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from dpo.dpo_runs import write_run as write_dpo
from posttrain.cli import dpo, rl_train, sft
from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from posttrain.train.sharding import launched_as, require_whole_model
from ranks.rank_runs import write_sft
from rl.rl_runs import write_run as write_rl

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
ZERO_3 = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
OWN_FILE = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": "zero.json"}
COMMANDS = {"toolkit-sft": sft.main, "toolkit-dpo": dpo.main, "toolkit-rl-train": rl_train.main}


@pytest.mark.parametrize(
    ("launch", "kind"), [(FSDP, "FSDP"), (ZERO_3, "DeepSpeed ZeRO-3"), (OWN_FILE, "DeepSpeed ZeRO-3")]
)
def test_what_would_shard_the_model_is_refused_by_name(
    launch: dict[str, str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 3}}')
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{kind} was asked for by accelerate launch, and toolkit-sft cannot train"):
        require_whole_model("toolkit-sft")


def test_a_launch_that_leaves_the_model_whole_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_whole_model("toolkit-sft")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    require_whole_model("toolkit-sft")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    for stage in ("1", "2"):
        monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", stage)
        require_whole_model("toolkit-sft")


@pytest.mark.parametrize(("command", "app"), COMMANDS.items(), ids=COMMANDS)
def test_each_trainer_refuses_before_it_writes_anything(
    command: str, app: Typer, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = {"toolkit-sft": write_sft, "toolkit-dpo": write_dpo, "toolkit-rl-train": write_rl}[command]
    config = write(tmp_path, tiny_model)
    before = sorted(tmp_path.iterdir())
    for name, value in FSDP.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(app, [str(config)])
    assert result.exit_code == 2
    [told] = result.stderr.splitlines()
    assert told.startswith(f"error: FSDP was asked for by accelerate launch, and {command} cannot train a model that")
    assert sorted(tmp_path.iterdir()) == before


ZERO_2 = {"ACCELERATE_USE_DEEPSPEED": "true"}


def test_what_deepspeed_does_is_part_of_how_a_run_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched_as() == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launched_as() == 2
    for name, value in ZERO_2.items():
        monkeypatch.setenv(name, value)
    assert launched_as() == "2, by DeepSpeed ZeRO-2"
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "1")
    assert launched_as() == "2, by DeepSpeed ZeRO-1"


def test_a_run_is_not_gone_on_with_where_the_optimizers_states_would_be_looked_for_elsewhere(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_sft(tmp_path, tiny_model)
    train(load_config(config, SFTConfig, ["training.max_steps=4"]), "run")
    for name, value in ZERO_2.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"what changed:\n  processes: 1 → 1, by DeepSpeed ZeRO-2\n"):
        train(load_config(config, SFTConfig), "run", resume=True)
