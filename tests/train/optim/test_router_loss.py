"""Preference optimisation and GRPO count the routers' loss too."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from dpo.dpo_runs import build, training_rows, write_run
from posttrain.models.kernels.packing import row_lengths
from rl.rl_recipes import WrittenServer, train_written
from rl.rl_runs import write_run as write_rl_run
from running import metrics
from tiny_experts import write_tiny_experts

pytestmark = pytest.mark.usefixtures("one_thread")


def test_preference_optimisation_counts_it_over_all_rows_of_a_pass(tmp_path):
    model = write_tiny_experts(tmp_path / "experts")
    training = build(write_run(tmp_path, model, lora=None), "training.batching=padding_free")
    (batch,) = training.recipe.batch(0)
    labels = batch["labels"]
    mask = torch.arange(labels.shape[1]) < row_lengths(labels).unsqueeze(1)
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        out = theirs(input_ids=batch["input_ids"], attention_mask=mask.long(), output_router_logits=True)
    training.train()
    first = training_rows(metrics(training.run.path))[0]
    assert first["router_loss"] == pytest.approx(float(out.aux_loss), abs=1e-5)


def test_grpo_counts_it_in_every_step(tmp_path):
    model = write_tiny_experts(tmp_path / "experts")
    config = write_rl_run(tmp_path, model, lora={"target_modules": ["q_proj", "v_proj"]}, training={"max_steps": 2})
    run = train_written(config, WrittenServer([0.0, 1.0] * 40))
    rows = [row for row in metrics(run.path) if "loss" in row]
    assert len(rows) == 2
    assert all(1 < row["router_loss"] < 4 for row in rows)
