"""Training models with experts: what transformers and PEFT compute for them, and what a resumed run repeats."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from in_process import sft
from posttrain.config.load import load_config
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.errors import ConfigError, ModelError
from posttrain.models.backend import TrainingSettings
from posttrain.models.hf import HfBackend
from posttrain.models.kernels.packing import row_lengths
from posttrain.sft.config import SFTConfig
from posttrain.sft.plan import show_plan
from running import metrics
from sft.small_sft import train_sft, write_sft_run
from tiny_experts import write_tiny_experts

pytestmark = pytest.mark.usefixtures("one_thread")
_ALL_AT_ONCE: dict[str, Any] = {
    "rows_per_step": 4,
    "micro_batch_size": 4,
    "learning_rate": 1e-2,
    "schedule": "constant",
    "batching": "by_length",
}


_FLOAT32 = "model.dtype=float32"


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_experts(tmp_path_factory.mktemp("models") / "experts")


@pytest.fixture
def write_run(tmp_path, experts):
    def write(**sections: Any) -> Path:
        return write_sft_run(tmp_path, experts, **{"lora": {"r": 4}, "validation": None, **sections})

    return write


def test_losses_and_load_balancing_losses_are_those_of_transformers_over_a_run(write_run, experts, tmp_path):
    config = write_run(lora=None, training=_ALL_AT_ONCE)
    rows = metrics(_train(config, "ours"))
    expected = _losses_of_transformers(config, experts, tmp_path, steps=len(rows))
    assert len(rows) == 6
    for row, (loss, balance) in zip(rows, expected, strict=True):
        assert row["loss"] == pytest.approx(loss, abs=1e-5)
        assert row["router_loss"] == pytest.approx(balance, abs=1e-5)


def test_micro_batches_and_packed_rows_change_only_what_is_a_mean_over_the_tokens_of_a_pass(write_run):
    runs = {}
    for size, batching in ((4, "by_length"), (4, "padding_free"), (2, "by_length")):
        training = {**_ALL_AT_ONCE, "micro_batch_size": size, "batching": batching}
        found = _train(write_run(training=training), f"{size}-{batching}")
        runs[size, batching] = [(row["loss"], row["router_loss"]) for row in metrics(found)]
    for packed, padded in zip(runs[4, "padding_free"], runs[4, "by_length"], strict=True):
        assert packed == pytest.approx(padded, abs=1e-4)
    (loss, balance), (same_loss, other_balance) = runs[4, "by_length"][0], runs[2, "by_length"][0]
    assert same_loss == pytest.approx(loss, abs=1e-5)
    assert other_balance == pytest.approx(balance, rel=0.1)
    assert other_balance != pytest.approx(balance, abs=1e-4)


def test_a_coefficient_of_0_leaves_the_load_balancing_loss_out(write_run):
    config = write_run()
    with_it = metrics(_train(config, "with", "training.max_steps=1"))[0]
    without = metrics(_train(config, "without", "training.max_steps=1", "training.router_loss=0"))[0]
    assert without["loss"] == pytest.approx(with_it["loss"], abs=1e-6)
    assert "router_loss" not in without
    assert with_it["grad_norm"] != without["grad_norm"]


def test_the_load_balancing_loss_is_refused_with_compiled_layers(write_run):
    with pytest.raises(ModelError, match=r"0\.01 in its config unless set, is not counted with training.compile: true"):
        _train(write_run(), "compiled", "training.compile=true")


def test_a_resumed_run_with_adapted_experts_repeats_the_uninterrupted_one_bit_for_bit(write_run):
    config = write_run()
    whole = _train(config, "run")
    kept = {name: (whole / name).read_bytes() for name in ("adapter_model.safetensors", "adapter_config.json")}
    rows = metrics(whole)
    shutil.rmtree(whole / "checkpoint-6")
    _train(config, "run", resume=True)
    assert metrics(whole) == rows
    assert kept == {name: (whole / name).read_bytes() for name in kept}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_the_parameters_that_are_named_are_trained_and_16_bits_work(dtype, write_run):
    lora = {"r": 2, "target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]}
    run = train_sft(write_run(lora=lora), "some", f"model.dtype={dtype}")
    weights = load_file(run / "adapter_model.safetensors")
    layer = "base_model.model.model.layers.0."
    assert {
        name.removeprefix(layer): tuple(each.shape) for name, each in weights.items() if name.startswith(layer)
    } == {
        "self_attn.q_proj.lora_A.weight": (2, 32),
        "self_attn.q_proj.lora_B.weight": (32, 2),
        "mlp.experts.lora_A.weight": (4 * 2, 24),
        "mlp.experts.lora_B.weight": (32, 4 * 2),
    }
    assert all(each.dtype == torch.float32 and each.abs().sum() > 0 for each in weights.values())
    losses = [row["loss"] for row in metrics(run)]
    assert losses[-1] < losses[0]


def test_in_16_bits_a_change_below_the_rounding_of_a_weight_does_not_reach_the_output(experts):
    lora = LoraConfig(r=2, target_modules=("q_proj",), target_parameters=("experts.down_proj",))
    model = ModelConfig(name=str(experts), backend="hf", dtype="bfloat16")
    settings = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0)
    loaded = HfBackend().load_for_training(model, lora, settings=settings)
    ids, logits = torch.arange(20)[None], []
    for size in (0, 1e-9, 0.1):
        for name, parameter in loaded.model.named_parameters():
            if "experts.lora_B" in name:
                parameter.data.fill_(size)
        logits.append(loaded.model(ids).logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_the_plan_and_the_run_say_which_experts_are_trained(write_run, capsys):
    told = {}
    for name, lora in (
        ("all", {"r": 4}),
        ("attention", {"r": 4, "target_modules": ["q_proj"]}),
        ("full", None),
    ):
        config = load_config(write_run(lora=lora), SFTConfig, [_FLOAT32])
        show_plan(config, name)
        told[name] = next(line for line in "".join(capsys.readouterr()).splitlines() if line.startswith("experts"))
    gate, fused = "mlp.gate.weight (r=4)", "mlp.experts.down_proj, mlp.experts.gate_up_proj"
    assert told["all"].split(maxsplit=1)[1].startswith("LoRA on mlp.experts.down_proj (r=4), mlp.experts.gate_up_proj")
    assert gate in told["all"]
    assert told["attention"].split(maxsplit=1)[1].startswith(f"{fused} frozen")
    assert told["full"].split(maxsplit=1)[1] == f"{fused} trained in full"


@pytest.mark.parametrize(
    ("lora", "message"),
    [
        ({"target_modules": "auto"}, "lora.target_modules: auto does not support qwen3_moe models"),
        ({"dropout": 0.1}, "by plain LoRA only; set dropout: 0 and dora: false"),
        ({"dora": True}, "by plain LoRA only"),
        ({"target_modules": ["q_proj", "expert_proj"]}, "its experts are the parameters down_proj, gate_up_proj"),
        ({"target_parameters": ["mlp.w1"]}, "no parameter 'mlp.w1' with two or three dimensions"),
        ({"init": "pissa"}, "pissa starts from the weights of linear layers, and model.layers.0.mlp.experts is none"),
    ],
)
def test_what_experts_do_not_take_is_refused_by_name(lora, message, write_run):
    with pytest.raises(ModelError, match=re.escape(message)):
        _train(write_run(lora={"r": 4, **lora}), "refused")


def test_parameters_with_dropout_are_refused_before_anything_is_read(write_run):
    lora = {"target_parameters": ["mlp.experts.down_proj"], "dropout": 0.1}
    with pytest.raises(ConfigError, match="target_parameters: PEFT adapts parameters by plain LoRA"):
        _train(write_run(lora=lora), "refused")


def _train(config: Path, name: str, *overrides: str, **options: bool) -> Path:
    return train_sft(config, name, _FLOAT32, *overrides, **options)


def _losses_of_transformers(config: Path, model: Path, folder: Path, steps: int) -> list[tuple[float, float]]:
    """Loss and load-balancing loss of each step, of the same batches trained by plain transformers."""
    recipe = sft(load_config(config, SFTConfig, [_FLOAT32]), folder / "batches").recipe
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0)
    found = []
    for step in range(steps):
        (batch,) = recipe.batch(step)
        ids, labels = batch["input_ids"], batch["labels"]
        mask = torch.arange(ids.shape[1]) < row_lengths(labels).unsqueeze(1)
        out = theirs(
            input_ids=ids, attention_mask=mask.long(), labels=labels, shift_labels=labels, output_router_logits=True
        )
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        balance = float(out.aux_loss.detach())
        found.append((float(out.loss.detach()) - 0.01 * balance, balance))
    return found
