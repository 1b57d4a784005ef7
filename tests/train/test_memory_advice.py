"""What is advised when memory runs out: the cheapest keys of this config, and none that is low already."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.dpo.config.dpo import DPOConfig
from posttrain.rl.config.rl import RLConfig
from posttrain.sft.config import SFTConfig
from posttrain.train.memory_advice import Phase, Situation, cheapest_changes

SFT = {
    "model": {"name": "owner/model"},
    "datasets": {"a": {"path": "owner/data"}},
    "stages": [{"name": "one", "until_step": 9, "mix": {"a": 1}}],
}
RL = {"model": {"name": "owner/model"}, "dataserver": {"url": "http://127.0.0.1:9000"}}


def keys(config: Any, phase: Phase = Phase.STEP, *, on_cuda: bool = True, limit: int = 3, longest: int | None = None):
    situation = Situation(config.model_dump(mode="json"), phase, on_cuda, longest)
    return [str(change).split(" (")[0] for change in cheapest_changes(situation, limit)]


def sft(**sections: Any) -> SFTConfig:
    return SFTConfig.model_validate({**SFT, **sections})


def rl(**sections: Any) -> RLConfig:
    return RLConfig.model_validate({**RL, **sections})


def test_a_step_that_does_not_fit_is_cut_into_smaller_pieces_before_anything_slower_or_other():
    assert keys(sft(), limit=9) == [
        "training.micro_batch_size: 4 → 2",
        "training.gradient_checkpointing: false → true",
        "model.quantization: none → 4bit",
        "chat.max_length: 2048 → 1024",
    ]


def test_what_is_set_already_is_left_out():
    training = {"micro_batch_size": 1, "gradient_checkpointing": True}
    model = {"name": "owner/model", "quantization": "4bit"}
    assert keys(sft(training=training, model=model)) == ["chat.max_length: 2048 → 1024"]


def test_a_full_fine_tuning_can_have_smaller_states_or_an_adapter_and_no_quantised_base():
    config = sft(lora=None, training={"micro_batch_size": 1, "gradient_checkpointing": True})
    assert keys(config) == [
        "training.optimizer: adamw → adamw_8bit",
        "chat.max_length: 2048 → 1024",
        "lora: null → {r: 16}",
    ]
    assert keys(config, Phase.UPDATE) == ["training.optimizer: adamw → adamw_8bit", "lora: null → {r: 16}"]


def test_an_adapter_that_training_goes_on_from_is_an_adapter():
    config = sft(lora={}, model={"name": "owner/model", "adapter": "/adapters/mine"})
    assert keys(config, Phase.LOAD) == ["model.quantization: none → 4bit"]


def test_on_a_cpu_nothing_is_advised_that_needs_a_cuda_device():
    assert keys(sft(), on_cuda=False, limit=9) == [
        "training.micro_batch_size: 4 → 2",
        "training.gradient_checkpointing: false → true",
        "chat.max_length: 2048 → 1024",
    ]
    full = sft(lora=None)
    assert "training.optimizer: adamw → adamw_8bit" not in keys(full, on_cuda=False, limit=9)


def test_a_model_that_cannot_be_loaded_is_not_helped_by_smaller_batches():
    model = {"name": "owner/model", "dtype": "float32"}
    assert keys(sft(model=model), Phase.LOAD) == ["model.dtype: float32 → auto", "model.quantization: none → 4bit"]
    assert keys(sft(), Phase.LOAD, on_cuda=False) == []


def test_a_pass_without_gradient_has_no_activations_to_recompute():
    assert keys(sft(), Phase.SCORE, on_cuda=False) == [
        "training.micro_batch_size: 4 → 2",
        "chat.max_length: 2048 → 1024",
    ]


def test_the_length_that_is_advised_is_below_the_row_that_did_not_fit():
    assert keys(sft(), longest=700)[-1] != "chat.max_length: 2048 → 320"  # there are three cheaper ones
    assert keys(sft(), longest=700, limit=9)[-1] == "chat.max_length: 2048 → 320"  # 350 in whole 64s
    assert keys(sft(), longest=90, limit=9)[-1] == "chat.max_length: 2048 → 45"
    assert not any("max_length" in key for key in keys(sft(chat={"max_length": 8}), limit=9))


def test_a_live_reference_is_only_worth_giving_up_where_it_is_a_copy():
    pairs = {"datasets": {"a": {"path": "owner/data"}}, "reference": {"type": "live"}}
    with_new_adapter = DPOConfig.model_validate({**SFT, **pairs})
    assert keys(with_new_adapter)[0] == "training.micro_batch_size: 4 → 2"
    full = DPOConfig.model_validate({**SFT, **pairs, "lora": None})
    assert keys(full)[0] == "reference.type: live → cached"


def test_vllm_beside_the_model_gives_way_first():
    config = rl(rollout={"engine": "vllm"})
    assert keys(config, limit=9) == [
        "training.micro_batch_size: 8 → 4",
        "rollout.sleep: false → true",
        "rollout.gpu_memory_utilization: 0.3 → 0.2",
        "training.gradient_checkpointing: false → true",
        "rollout.max_new_tokens: 256 → 128",
    ]
    asleep = rl(rollout={"engine": "vllm", "sleep": True})
    assert "rollout.gpu_memory_utilization: 0.3 → 0.2" not in keys(asleep, limit=9)
    assert keys(asleep, Phase.GENERATE)[0] == "rollout.gpu_memory_utilization: 0.3 → 0.2"


def test_generation_by_transformers_is_made_smaller_and_not_the_step():
    assert keys(rl(), Phase.GENERATE, on_cuda=False) == [
        "rollout.batch_size: 64 → 32",
        "rollout.max_new_tokens: 256 → 128",
    ]


def test_modules_trained_in_full_are_named():
    config = sft(lora={"modules_to_save": ["embed_tokens", "lm_head"]})
    assert "lora.modules_to_save: [embed_tokens, lm_head] → []" in keys(config, Phase.UPDATE)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4))
def test_a_smaller_micro_batch_fits_wherever_the_larger_one_did(rows, accumulation, processes):
    rows_per_step = rows * accumulation * processes
    config = sft(training={"micro_batch_size": rows, "rows_per_step": rows_per_step}).model_dump(mode="json")
    found = cheapest_changes(Situation(config, Phase.SCORE, on_cuda=False))
    changes = [change for change in found if change.key == "training.micro_batch_size"]
    assert len(changes) == (rows > 1)
    for change in changes:
        assert rows_per_step % (int(change.after) * processes) == 0
        assert 1 <= int(change.after) < rows


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("on_cuda", [True, False])
def test_no_more_than_three_are_named_and_each_once(phase, on_cuda):
    for config in (sft(), sft(lora=None), rl(), rl(rollout={"engine": "vllm"}), rl(lora=None)):
        found = [key.split(":")[0] for key in keys(config, phase, on_cuda=on_cuda)]
        assert len(found) == len(set(found)) <= 3
