"""Runs whose adapter starts from the base's weights: they resume bit for bit, and export plain LoRA."""

import json
import shutil

import pytest

from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from running import metrics


@pytest.mark.parametrize(("init", "quantization"), [("pissa_niter_16", "none"), ("loftq", "4bit")])
def test_a_resumed_run_is_the_same_and_its_adapter_is_plain_lora(
    write_config, tiny_model, tmp_path, init, quantization
):
    training = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2, "lora_plus_ratio": 4}
    sections = {
        "lora": {"r": 4, "init": init},
        "training": training,
        "model": {"name": str(tiny_model), "quantization": quantization},
    }
    sections["validation"] = {"dataset": {"path": "held_out.jsonl"}, "every": 4, "at_start": True}
    config = load_config(write_config(**sections), SFTConfig)
    folder = tmp_path / "runs" / "run"
    train(config, "run")
    whole = metrics(folder), (folder / "adapter_model.safetensors").read_bytes()
    for newer in ("checkpoint-6", "checkpoint-8"):
        shutil.rmtree(folder / newer)
    (folder / "result.json").unlink()
    train(config, "run", resume=True)
    assert (metrics(folder), (folder / "adapter_model.safetensors").read_bytes()) == whole

    described = json.loads((folder / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"], described["init_lora_weights"]) == (8, 64, True)
    losses = [row["eval_loss"] for row in whole[0] if "eval_loss" in row]
    assert losses[-1] < losses[0] - 0.1
