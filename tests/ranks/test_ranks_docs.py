"""The page on several processes shows commands that run and messages that they print."""

import shlex
from pathlib import Path

import pytest

from dpo.dpo_runs import TRAINING
from dpo.dpo_runs import write_run as write_dpo
from posttrain.errors import ConfigError, RunError
from posttrain.runs.failures import ranks_explained
from posttrain.runs.manifest import require_same_run
from posttrain.train.parallel.launch import require_own_sharding
from ranks.rank_runs import run, write_sft
from rl.rl_runs import write_run as write_rl
from test_dataserver_docs import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in blocks(PAGE, "") for line in block.splitlines() if line.startswith("torchrun --standalone ")
]
# The page wraps long lines.
SAID = [" ".join(block.split()) for block in blocks(PAGE, "") if block.startswith("error: ")]


@pytest.mark.long
def test_the_commands_run_one_after_another(tmp_path: Path, tiny_model: Path) -> None:
    stages = [{"name": "one", "until_step": 2, "mix": {"a": 1}}]
    configs = {
        "sft.yaml": write_sft(tmp_path, tiny_model, "sft", stages=stages),
        "dpo.yaml": write_dpo(tmp_path, tiny_model, "dpo", stages=stages, training={**TRAINING, "micro_batch_size": 2}),
        "grpo.yaml": write_rl(tmp_path, tiny_model, name="grpo", training={"max_steps": 1}, evaluation=None),
    }
    called = []
    for command in COMMANDS:
        launch, (program, config, *options) = shlex.split(command)[:4], shlex.split(command)[4:]
        assert launch == ["torchrun", "--standalone", "--nproc-per-node", "2"]
        run(Path(program).name, configs[config], *options)
        called.append([Path(program).name, *options])
    assert called == [["toolkit-sft"], ["toolkit-dpo"], ["toolkit-rl-train"], ["toolkit-sft", "--resume"]]


def test_the_refusals_are_what_the_commands_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError) as other_count:
        require_same_run({"identity": {"processes": 2}}, {"processes": 1})
    assert f"error: {' '.join(str(other_count.value).split())}" in SAID
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError) as sharded:
        require_own_sharding()
    assert f"error: {sharded.value}" in SAID


def test_the_message_of_a_process_that_lost_another_is_that_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ranks.test_lost_ranks import CLOSED, with_a_checkpoint

    monkeypatch.setenv("WORLD_SIZE", "2")
    with with_a_checkpoint(tmp_path, step=8) as directory, pytest.raises(RunError) as lost, ranks_explained(directory):
        raise RuntimeError(CLOSED)
    assert f"error: {lost.value}" in SAID
