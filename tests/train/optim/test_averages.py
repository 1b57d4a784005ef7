"""Averages of the weights: equal to their libraries' own, exchanged without a trace, and exact after a resume."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from posttrain.config.sections.datasets import ValidationConfig
from posttrain.config.sections.training import EMAConfig, TrainingConfig
from posttrain.errors import ConfigError, RunInterrupted
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory
from posttrain.runs.metrics import read_metrics
from posttrain.runs.resume import ResumePoint, RunCounters
from posttrain.train.optim.averages import open_averages
from posttrain.train.optim.optimizer import make_optimizers
from train.small_training import TokenRecipe, Trained, make, train

EMA: dict[str, Any] = {"optimizer": "sgd", "ema": {"decay": 0.5}}
SCHEDULE_FREE = {"optimizer": "schedule_free_adamw", "schedule": "constant", "warmup_steps": 2}


def training(**keys: Any) -> TrainingConfig:
    sizes = {"rows_per_step": 2, "micro_batch_size": 1, "learning_rate": 1e-2}
    return TrainingConfig.model_validate({**sizes, **keys})


def test_an_ema_is_that_of_torch():
    layer = nn.Linear(1, 1, bias=False)
    averages = open_averages(layer, [], EMAConfig(decay=0.75), None)
    theirs = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    for step, weight in enumerate((8.0, 4.0, 0.0)):
        layer.weight.data.fill_(weight)
        averages.update(step)
        theirs.update_parameters(layer)
    with averages.exported():
        # 8, then 0.75·8 + 0.25·4 = 7, then 0.75·7 + 0.25·0 = 5.25.
        assert layer.weight.item() == 5.25 == next(theirs.parameters()).item()
    assert layer.weight.item() == 0.0


def test_live_weights_are_exported_beside_an_ema_that_is_only_kept():
    layer = nn.Linear(1, 1, bias=False)
    averages = open_averages(layer, [], EMAConfig(decay=0.75, export="live"), None)
    averages.update(0)
    layer.weight.data.fill_(3.0)
    averages.update(1)
    with averages.exported():
        assert layer.weight.item() == 3.0


def test_a_schedule_free_average_is_its_own_and_the_weights_come_back_exactly():
    torch.manual_seed(0)
    layer = nn.Linear(5, 5)
    (optimizer,) = make_optimizers(layer, training(**SCHEDULE_FREE))
    averages = open_averages(layer, [optimizer], None, None)
    for _ in range(3):
        layer(torch.ones(1, 5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = layer.weight.detach().clone()
    z = optimizer.state[layer.weight]["z"]
    with averages.exported():
        # y = (1 − β₁)·z + β₁·x, solved for the average x (arXiv:2405.15682).
        assert torch.allclose(layer.weight, (trained - 0.1 * z) / 0.9, atol=1e-6)
        assert not torch.equal(layer.weight, trained)
    assert torch.equal(layer.weight, trained)


def test_two_averages_at_once_are_refused():
    layer = nn.Linear(5, 5)
    own = training(optimizer={"class": "schedulefree.AdamWScheduleFree"})
    with pytest.raises(ConfigError, match="averages the weights itself; leave ema out"):
        open_averages(layer, make_optimizers(layer, own), EMAConfig(), None)


def run(
    folder: Path, model: Path, settings: TrainingConfig, point: ResumePoint | None = None, stop: int = 0
) -> Trained:
    signals = [(stop, signal.SIGINT)] if stop else []
    trained = make(folder, model, TokenRecipe(signals=signals), point, settings)
    validation = ValidationConfig.model_validate({"fraction": 0.5, "every": 2})
    return train(trained, save_every=3, validation=validation)


@pytest.mark.parametrize(
    "keys",
    [
        EMA,
        {**EMA, "ema": {"export": "live"}},
        SCHEDULE_FREE,
        {"optimizer": "schedule_free_sgd", "schedule": "constant", "momentum": 0.8},
        {"optimizer": "schedule_free_radam", "schedule": "constant"},
        {"optimizer": {"class": "schedulefree.AdamWScheduleFree", "arguments": {"betas": [0.8, 0.9]}}},
        {"optimizer": "muon", "weight_decay": 0.1},
        {"optimizer": "adafactor"},
        {"optimizer": "nadam"},
        {"optimizer": "radam"},
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": {"class": "torch.optim.Adagrad"}},
    ],
    ids=range(12),
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path, tiny_model: Path, keys: dict[str, Any]):
    settings = training(**keys)
    whole = run(tmp_path / "whole", tiny_model, settings)
    with pytest.raises(RunInterrupted):
        run(tmp_path / "stopped", tiny_model, settings, stop=5)  # where the whole run has no checkpoint
    checkpoint = latest_checkpoint(RunDirectory(tmp_path / "stopped"))
    assert checkpoint is not None and checkpoint.step == 5
    counters = RunCounters(step=5)
    resumed = run(tmp_path / "stopped", tiny_model, settings, ResumePoint(checkpoint.path, counters))

    assert whole.saved[-1] == resumed.saved[-1] == 6
    files = {"model.safetensors", "optimizer.pt", "optimizer_weights.safetensors"}
    for file in files & {each.name for each in (whole.run.path / "checkpoint-6").iterdir()}:
        last = [each.run.path / "checkpoint-6" / file for each in (whole, resumed)]
        assert last[0].read_bytes() == last[1].read_bytes(), file
    assert read_metrics(whole.run.metrics) == read_metrics(resumed.run.metrics)


def test_a_checkpoint_has_the_average_as_its_model_and_what_was_evaluated_is_its_loss(tmp_path, tiny_model):
    settings = training(**EMA)
    trained = run(tmp_path / "run", tiny_model, settings)
    folder = trained.run.path / "checkpoint-6"
    average, live = load_file(folder / "model.safetensors"), load_file(folder / "optimizer_weights.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(live[name], dict(trained.state.loaded.model.named_parameters())[name])
    assert not torch.equal(average[name], live[name])
    exported = make(tmp_path / "exported", folder, TokenRecipe())
    evaluated = exported.recipe.evaluate(exported.state.model, 6)[0]["loss"]
    assert evaluated == pytest.approx(read_metrics(trained.run.metrics)[-1]["eval_loss"], rel=1e-6)
