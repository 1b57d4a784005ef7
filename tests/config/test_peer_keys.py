"""Keys of other tools are answered with the keys here."""

from pathlib import Path

import pytest

from posttrain.config.errors import _has_path
from posttrain.config.load import load_config
from posttrain.config.peer_keys import PEER_KEYS
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ConfigError
from posttrain.rl.config import RLConfig
from posttrain.sft.config import SFTConfig

SFT = """
model: {name: smollm2-135m-instruct}
datasets: {a: {path: a.jsonl}}
stages: [{name: s, until_step: 1, mix: {a: 1}}]
"""


@pytest.mark.parametrize("topic", PEER_KEYS)
def test_every_key_that_is_named_as_ours_is_one(topic: str):
    for setting in PEER_KEYS[topic]:
        assert setting.ours or setting.remark
        for path in setting.ours:
            assert any(_has_path(model, path) for model in (SFTConfig, DPOConfig, RLConfig)), path


def test_no_name_means_two_things():
    names = [name for group in PEER_KEYS.values() for setting in group for name in setting.names]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("training.lr=1", "training.learning_rate"),
        ("learning_rate=1", "training.learning_rate"),
        ("training.gradient_accumulation_steps=4", "training.rows_per_step"),
        ("training.bf16=true", "model.dtype"),
        ("training.pad_to_sequence_len=true", "rows are never padded beyond the longest"),
        ("training.num_train_epochs=3", "stages.N.epochs"),
        ("run.wandb_project=a", "run.trackers"),
        ("training.per_device_train_batch_size=4", "training.micro_batch_size"),
        ("training.lr_scheduler_type=cosine", "training.schedule"),
        ("lora.lora_alpha=1", "lora.alpha"),
        ("training.logging_steps=1", "every step is logged"),
        ("training.deepspeed=a", "parallel.kind"),
    ],
)
def test_a_key_of_another_tool_is_answered_with_ours(tmp_path: Path, override: str, key: str):
    (tmp_path / "a.yaml").write_text(SFT)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.yaml", SFTConfig, [override])
    assert "unknown key" in str(refused.value) and key in str(refused.value)


def test_a_setting_that_this_command_does_not_have_is_not_promised(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(SFT)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.yaml", SFTConfig, ["training.num_generations=4"])
    assert "rollout" not in str(refused.value)
