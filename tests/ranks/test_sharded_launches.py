"""Every trainer refuses launches that would shard the model, with one message and before anything is written."""

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from dpo.dpo_runs import write_run as write_dpo
from posttrain.cli import dpo, rl_train, sft
from posttrain.errors import ConfigError
from posttrain.train.parallel.launch import require_own_sharding
from ranks.rank_runs import write_sft
from rl.rl_runs import write_run as write_rl

FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
ZERO = {"ACCELERATE_USE_DEEPSPEED": "true"}
TENSORS = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}
COMMANDS = {"toolkit-sft": sft.main, "toolkit-dpo": dpo.main, "toolkit-rl-train": rl_train.main}


@pytest.mark.parametrize(
    ("launch", "kind"), [(FSDP, "FSDP"), (ZERO, "DeepSpeed"), (TENSORS, "tensor or context parallelism")]
)
def test_what_would_shard_a_run_is_refused_by_name(
    launch: dict[str, str], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_own_sharding()
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^accelerate launch was told to use {kind}, .*parallel.kind: fsdp2"):
        require_own_sharding()
    for name in launch:
        monkeypatch.setenv(name, "false")
    require_own_sharding()


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
    assert told.startswith("error: accelerate launch was told to use FSDP")
    assert sorted(tmp_path.iterdir()) == before
