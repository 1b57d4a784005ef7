"""Which errors mean that memory ran out, where it ran out, and what the message says."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.config.sections.engines import ENGINES, EngineTraits
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.errors import ModelError, RunError, ServerError
from posttrain.rl.config import RLConfig
from posttrain.runs.directory import RunDirectory
from posttrain.runs.resume import RunCounters
from posttrain.sft.config import SFTConfig
from posttrain.train.memory import (
    ForwardSizes,
    Phase,
    Situation,
    cheapest_changes,
    during,
    memory_explained,
    ran_out_of_memory,
    whereabouts,
)

# Bytes; more than any machine has.
TOO_LARGE = 2**50


def failed_allocation() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(TOO_LARGE, dtype=torch.uint8)
    return caught.value


def test_a_tensor_that_torch_finds_no_room_for_is_out_of_memory():
    assert ran_out_of_memory(failed_allocation())
    assert ran_out_of_memory(MemoryError())
    assert ran_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_an_error_that_was_made_of_it_is_too():
    try:
        try:
            raise failed_allocation()
        except RuntimeError as error:
            raise ModelError("cannot load it") from error
    except ModelError as error:
        assert ran_out_of_memory(error)


def test_other_errors_are_not():
    assert not ran_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not ran_out_of_memory(ModelError("there is no folder x"))
    assert not ran_out_of_memory(ServerError("the dataserver answers 500: out of memory"))


def test_another_error_goes_through_as_it_is(tmp_path):
    with (
        pytest.raises(ModelError, match=r"^mine$"),
        memory_explained({}, RunDirectory(tmp_path), RunCounters()),
    ):
        raise ModelError("mine")


def test_before_anything_is_known_the_message_says_how_much_was_asked_for(tmp_path):
    with (
        pytest.raises(RunError) as caught,
        memory_explained({}, RunDirectory(tmp_path), RunCounters()),
    ):
        torch.empty(TOO_LARGE, dtype=torch.uint8)
    first, *_, last = str(caught.value).splitlines()
    assert first.startswith("out of memory before the first optimizer step: ")
    assert " of the machine's " in first
    assert first.endswith(", and the failed allocation needed 1048576.00 GiB more")
    assert last == "nothing was saved yet; start again, with --overwrite if the run's folder already exists"


def test_the_innermost_block_says_what_was_going_on_whatever_was_made_of_the_error():
    with pytest.raises(ModelError) as caught, during(Phase.STEP, "in optimizer step 13"):
        try:
            with during(Phase.SCORE, "while the reference was asked"):
                raise failed_allocation()
        except RuntimeError as error:
            raise ModelError("cannot ask it") from error
    assert whereabouts(caught.value) == (Phase.SCORE, "while the reference was asked")


def test_without_a_block_it_was_before_the_first_step():
    assert whereabouts(failed_allocation()) == (Phase.LOAD, "before the first optimizer step")


def test_an_optimizer_that_finds_no_room_for_its_states_has_run_out_of_memory():
    # One number expanded to 2⁴⁸: it takes no memory, but Adam's moments would.
    parameter = torch.nn.Parameter(torch.zeros(1).expand(2**48))
    parameter.grad = parameter.detach()
    with pytest.raises(RuntimeError) as caught:
        torch.optim.AdamW([parameter], foreach=False).step()
    assert ran_out_of_memory(caught.value)


def test_the_size_of_what_went_through_the_model_last_is_remembered():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(8, 2)

        def get_input_embeddings(self):
            return self.embedding

        def forward(self, input_ids):
            return self.embedding(input_ids)

    model, sizes = Model(), ForwardSizes()
    sizes.watch(model)
    model(torch.zeros(3, 7, dtype=torch.long))
    model(torch.zeros(2, 5, dtype=torch.long))
    assert (sizes.rows, sizes.tokens) == (2, 5)


def test_whoever_only_prepares_to_explain_does_not_import_torch():
    code = "import posttrain.train.memory, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


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


def test_where_tokens_are_counted_fewer_of_them_go_through_the_model_at_once():
    config = sft(training={"micro_batch_tokens": 3000, "gradient_checkpointing": True})
    assert keys(config, limit=1) == ["training.micro_batch_tokens: 3000 → 1500"]


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
    assert keys(sft(), longest=700)[-1] != "chat.max_length: 2048 → 320"  # three cheaper changes come first
    assert keys(sft(), longest=700, limit=9)[-1] == "chat.max_length: 2048 → 320"  # 350 rounded down to 64s
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


def test_an_engine_that_cannot_sleep_can_only_have_a_smaller_share(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ENGINES, "hf", EngineTraits("another", has_weights=True, is_beside=True))
    assert keys(rl(), Phase.UPDATE)[0] == "rollout.gpu_memory_utilization: 0.3 → 0.2"
    assert keys(rl(), Phase.GENERATE)[0] == "rollout.gpu_memory_utilization: 0.3 → 0.2"


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
