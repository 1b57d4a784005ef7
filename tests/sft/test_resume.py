"""A killed and resumed run equals an undisturbed one bit for bit."""

import re
import shutil

import pytest
import yaml
from safetensors.torch import load_file, save_file

from posttrain.config.load import load_config
from posttrain.errors import ConfigError
from posttrain.sft.config import SFTConfig
from posttrain.sft.train import train
from running import metrics, require_equal_after_a_kill


def test_a_killed_run_goes_on_bit_for_bit(write_config, toolkit, tmp_path):
    # Dropout is on, checkpoints are at steps 3 and 6, and the kill comes after step 4 or 5: steps 4 and 5 are
    # trained twice and must give the same result.
    left_alone, killed = write_config("left_alone"), write_config("killed")
    require_equal_after_a_kill(
        toolkit, left_alone, killed, tmp_path / "runs", ("adapter_model.safetensors", "checkpoint-8/optimizer.pt")
    )


@pytest.mark.long
@pytest.mark.ranks
def test_two_processes_go_on_bit_for_bit(write_config, toolkit, tmp_path):
    config = write_config(run={"save_every": 2, "keep_checkpoints": 9})
    short = ("--set", "training.max_steps=4")
    toolkit("toolkit-sft", config, *short, processes=2)
    run = tmp_path / "runs" / "run"
    whole = metrics(run), (run / "adapter_model.safetensors").read_bytes()

    # As a kill after step 3 would have left it.
    shutil.rmtree(run / "checkpoint-4")
    (run / "result.json").unlink()
    toolkit("toolkit-sft", config, *short, "--resume", processes=2)

    assert (metrics(run), (run / "adapter_model.safetensors").read_bytes()) == whole


@pytest.mark.parametrize(
    ("section", "value", "named"),
    [
        (
            "training",
            {"rows_per_step": 8, "micro_batch_size": 2, "learning_rate": 1e-2},
            "training.rows_per_step: 4 → 8",
        ),
        ("training", {"rows_per_step": 4, "micro_batch_size": 1, "learning_rate": 1e-2}, "micro_batch_size: 2 → 1"),
        (
            "training",
            {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2, "seed": 1},
            "training.seed: 0 → 1",
        ),
        ("chat", {"max_length": 128}, "chat.max_length: 256 → 128"),
        ("lora", {"r": 8, "dropout": 0.1}, "lora.r: 4 → 8"),
        ("stages", [{"name": "one", "until_step": 8, "mix": {"a": 1, "b": 1}}], "the stages before step"),
    ],
)
def test_a_resume_that_would_be_another_run_is_refused_by_name(write_config, tmp_path, section, value, named):
    train(load_config(write_config(), SFTConfig, ["training.max_steps=6"]), "run")
    changed = load_config(write_config(**{section: value}), SFTConfig)
    with pytest.raises(ConfigError, match=named):
        train(changed, "run", resume=True)
    assert (tmp_path / "runs" / "run" / "checkpoint-6").is_dir()


def test_a_resume_with_an_edited_row_is_refused(write_config, tmp_path):
    config = load_config(write_config(), SFTConfig)
    train(load_config(write_config(), SFTConfig, ["training.max_steps=4"]), "run")
    lines = (tmp_path / "b.jsonl").read_text().splitlines()
    (tmp_path / "b.jsonl").write_text("\n".join([lines[0].replace("100", "101"), *lines[1:]]) + "\n")
    with pytest.raises(ConfigError, match=r"datasets\.b: \w+ → \w+"):
        train(config, "run", resume=True)


def test_a_resume_with_other_held_out_rows_is_refused(write_config, tmp_path):
    held_out = {"dataset": {"path": "held_out.jsonl"}, "every": 2}
    config = load_config(write_config(validation=held_out), SFTConfig)
    train(load_config(write_config(validation=held_out), SFTConfig, ["training.max_steps=4"]), "run")
    lines = (tmp_path / "held_out.jsonl").read_text().splitlines()
    (tmp_path / "held_out.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ConfigError, match=r"\n  validation\.dataset: \w+ → \w+\n"):
        train(config, "run", resume=True)


def test_a_resume_on_other_weights_under_the_same_name_is_refused(write_config, toolkit, tiny_model, tmp_path):
    base = tmp_path / "stage1"
    shutil.copytree(tiny_model, base)
    config = write_config(model={"name": str(base)})
    train(load_config(config, SFTConfig, ["training.max_steps=4"]), "run")
    before = (base / "model.safetensors").read_bytes()
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, base / "model.safetensors", {"format": "pt"})

    refused = toolkit("toolkit-sft", config, "--run-name", "run", "--resume", expect=2)
    assert re.search(r"what changed:\n  weights: [0-9a-f]{32} → [0-9a-f]{32}\nundo the changes", refused.stderr)
    (base / "model.safetensors").write_bytes(before)
    assert train(load_config(config, SFTConfig, ["training.max_steps=5"]), "run", resume=True)["steps"] == 5


def test_a_later_stage_may_change_and_a_longer_run_says_what_that_does_to_the_schedule(write_config, capfd):
    config = write_config()
    train(load_config(config, SFTConfig, ["training.max_steps=4"]), "run")
    longer = yaml.safe_load(config.read_text())
    longer["stages"][1] = {"name": "three", "until_step": 6, "mix": {"b": 1}}
    config.write_text(yaml.safe_dump(longer))
    result = train(load_config(config, SFTConfig), "run", resume=True)
    said = " ".join(capfd.readouterr().err.split())
    assert result["steps"] == 6
    # Cosine: at step 4 a schedule of 4 steps is at 0, and one of 6 at (1 + cos(4π/6)) / 2 = 0.25 of its peak.
    assert "the schedule now spans 6 steps instead of 4: at step 4 the learning rate goes from 0 to 0.0025" in said
    # It does, and at step 5 it is at (1 + cos(5π/6)) / 2 = 0.067.
    rates = [row["learning_rate"] for row in metrics(config.parent / "runs" / "run") if "loss" in row]
    assert rates[4:] == pytest.approx([0.0025, 0.00067], abs=1e-5)


def test_a_resumed_run_takes_the_learning_rate_that_its_config_has_now(write_config):
    config = write_config()
    constant = ["training.schedule=constant"]
    train(load_config(config, SFTConfig, [*constant, "training.max_steps=4"]), "run")
    train(
        load_config(config, SFTConfig, [*constant, "training.max_steps=6", "training.learning_rate=0.003"]),
        "run",
        resume=True,
    )
    rates = [row["learning_rate"] for row in metrics(config.parent / "runs" / "run") if "loss" in row]
    assert rates == pytest.approx([0.01] * 4 + [0.003] * 2)


def test_a_finished_run_is_neither_trained_again_nor_overwritten(write_config):
    config = load_config(write_config(), SFTConfig)
    first = train(config, "run")
    assert train(config, "run", resume=True) == first
    with pytest.raises(ConfigError, match="--resume, replace it with --overwrite"):
        train(config, "run")
