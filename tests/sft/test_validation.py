"""Held-out rows are measured exactly, split off the same way each time, and decide when to stop."""

import pytest

from posttrain.config.load import load_config
from posttrain.models.load import choose_backend
from posttrain.sft.config import SFTConfig
from posttrain.sft.data import prepare_data
from posttrain.sft.train import train
from running import metrics


def evaluations(run):
    return [(row["step"], row["eval_loss"]) for row in metrics(run) if "eval_loss" in row]


def test_validation_runs_before_training_then_every_so_often_and_at_the_end(write_config, tmp_path):
    config = write_config(validation={"dataset": {"path": "held_out.jsonl"}, "every": 3})
    train(load_config(config, SFTConfig), "run")
    assert [step for step, _ in evaluations(tmp_path / "runs" / "run")] == [0, 3, 6, 8]


def test_the_validation_loss_does_not_depend_on_how_its_rows_are_batched(write_config, tmp_path):
    config = write_config(validation={"dataset": {"path": "held_out.jsonl"}, "every": 8})
    sizes = ("1", "4")
    for size in sizes:
        overrides = [f"training.micro_batch_size={size}", "training.max_steps=1", "model.dtype=float32"]
        train(load_config(config, SFTConfig, overrides), size)
    first, second = (evaluations(tmp_path / "runs" / size)[0][1] for size in sizes)
    assert first == pytest.approx(second, abs=1e-6)


def test_a_fraction_is_split_off_by_content_and_is_not_trained(write_config):
    config = load_config(write_config(validation={"fraction": 0.25, "every": 4}), SFTConfig)
    tokenizer = choose_backend(config.model).load_tokenizer(config.model, chatml=True)
    first, again = (prepare_data(config, tokenizer, print) for _ in range(2))
    # A quarter of the 12 rows in each of two data sets.
    assert len(first.validation) == 6
    assert first.validation.contents.tolist() == again.validation.contents.tolist()
    for dataset in first.datasets.values():
        assert len(dataset) == 9
        assert not set(dataset.contents.tolist()) & set(first.validation.contents.tolist())


def test_training_stops_early_once_validation_no_longer_improves(write_config, tmp_path):
    # At a learning rate of 30 the loss soon gets worse: training stops two evaluations after the best one.
    config = write_config(
        validation={"dataset": {"path": "held_out.jsonl"}, "every": 1, "patience": 2},
        training={"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 30.0, "schedule": "constant"},
        stages=[{"name": "one", "until_step": 40, "mix": {"a": 1, "b": 1}}],
        run={"save_every": 50, "export": "best"},
    )
    result = train(load_config(config, SFTConfig), "run")
    losses = dict(evaluations(tmp_path / "runs" / "run"))
    best = min((step for step in losses if step > 0), key=lambda step: losses[step])
    assert result["steps"] == best + 2 < 40
    assert result["exported"] == f"checkpoint-{best}"
    exported = (tmp_path / "runs" / "run" / "adapter_model.safetensors").read_bytes()
    assert exported == (tmp_path / "runs" / "run" / f"checkpoint-{best}" / "adapter_model.safetensors").read_bytes()
