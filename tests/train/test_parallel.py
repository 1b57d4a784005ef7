"""Steps that are shared by processes, and launches that would shard what no recipe can train sharded."""

import pytest

from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.train.parallel import accumulation_steps, require_unsharded


def test_one_process_accumulates_the_whole_step(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4)) == 4


def test_more_processes_share_the_same_step(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert accumulation_steps(TrainingConfig(rows_per_step=24, micro_batch_size=4)) == 2


def test_a_step_that_does_not_divide_over_the_processes_says_what_would(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match=r"rows_per_step 16 is not .* 4 × 3 processes; choose a multiple of 12"):
        accumulation_steps(TrainingConfig(rows_per_step=16, micro_batch_size=4))


@pytest.mark.parametrize(
    ("variable", "kind"), [("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")]
)
def test_what_would_be_sharded_is_refused_by_name(monkeypatch, variable, kind):
    monkeypatch.setenv(variable, "true")
    with pytest.raises(ConfigError, match=f"{kind} was asked for by accelerate launch, and toolkit-sft cannot"):
        require_unsharded("toolkit-sft")
    monkeypatch.setenv(variable, "false")
    require_unsharded("toolkit-sft")
