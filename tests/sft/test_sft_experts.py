"""Training models with experts: what transformers and PEFT compute for them, and what a resumed run repeats."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from in_process import sft
from posttrain.config.load import load_config
from posttrain.errors import ModelError
from posttrain.models.kernels.packing import row_lengths
from posttrain.sft.config import SFTConfig
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


def _train(config: Path, name: str, *overrides: str) -> Path:
    return train_sft(config, name, _FLOAT32, *overrides)


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
