"""Runs whose average is evaluated and exported: they are killed and resumed, and predict with the average."""

import shutil

from safetensors.torch import load_file

from posttrain.config.load import load_config
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from running import metrics, require_equal_after_a_kill

SIZES = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2}
VALIDATION = {"dataset": {"path": "held_out.jsonl"}, "every": 2}
FILES = ("adapter_model.safetensors", "checkpoint-8/optimizer.pt", "checkpoint-8/optimizer_weights.safetensors")


def test_a_killed_schedule_free_run_goes_on_bit_for_bit(write_config, toolkit, tmp_path):
    schedule_free = {"optimizer": "schedule_free_adamw", "schedule": "constant", "warmup_ratio": 0.25}
    sections = {"training": {**SIZES, **schedule_free}, "validation": VALIDATION}
    left_alone, killed = write_config("left_alone", **sections), write_config("killed", **sections)
    require_equal_after_a_kill(toolkit, left_alone, killed, tmp_path / "runs", FILES)


def test_an_adapter_goes_on_from_the_weights_in_training_and_leaves_those_that_are_exported(write_config, tmp_path):
    training = {**SIZES, "ema": {"decay": 0.8}, "lora_plus_ratio": 4}
    config = load_config(write_config(training=training, validation=VALIDATION), SFTConfig)
    folder = tmp_path / "runs" / "run"
    train(config, "run")
    whole = metrics(folder), [(folder / file).read_bytes() for file in FILES]
    for newer in ("checkpoint-6", "checkpoint-8"):
        shutil.rmtree(folder / newer, ignore_errors=True)
    (folder / "result.json").unlink()
    train(config, "run", resume=True)
    assert (metrics(folder), [(folder / file).read_bytes() for file in FILES]) == whole

    assert not (folder / "optimizer_weights.safetensors").exists()
    exported, others = load_file(folder / FILES[0]), load_file(folder / FILES[2])
    assert len(exported) == len(others)
    name = "model.layers.0.mlp.up_proj.lora_B"
    one = next(each for key, each in exported.items() if name in key)
    assert all((one != each).any() for key, each in others.items() if name in key)
