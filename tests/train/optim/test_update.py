"""One update of the weights: unscale, clip, step."""

import math

import pytest
import torch
from torch import nn

from posttrain.config.sections.training import TrainingConfig
from posttrain.train.optim.optimizer import make_optimizers
from posttrain.train.optim.update import update

NOT_SCALED = torch.amp.GradScaler("cpu", enabled=False)
SGD = TrainingConfig(optimizer="sgd", learning_rate=99.0)


def layer_with_gradient(*gradient: float) -> nn.Linear:
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.fill_(1.0)
    layer.weight.grad = torch.tensor([gradient])
    layer.bias.grad = torch.zeros(1)
    return layer


def test_a_step_of_sgd_is_the_learning_rate_times_the_gradient():
    layer = layer_with_gradient(3.0, 4.0)
    assert update(make_optimizers(layer, SGD), NOT_SCALED, 0.1, max_grad_norm=0) == pytest.approx(5.0)
    assert layer.weight.tolist() == [pytest.approx([0.7, 0.6])]
    assert layer.weight.grad is None


@pytest.mark.parametrize(("limit", "expected"), [(1.0, [0.94, 0.92]), (10.0, [0.7, 0.6])])
def test_a_longer_gradient_is_cut_to_the_limit_and_its_own_norm_is_told(limit: float, expected: list[float]):
    # (3, 4) has norm 5; clipped to norm 1 it is (0.6, 0.8).
    layer = layer_with_gradient(3.0, 4.0)
    assert update(make_optimizers(layer, SGD), NOT_SCALED, 0.1, max_grad_norm=limit) == pytest.approx(5.0)
    assert layer.weight.tolist() == [pytest.approx(expected, rel=1e-4)]


def test_the_norm_is_that_of_all_optimizers_together_and_each_of_them_steps():
    layer = layer_with_gradient(3.0, 0.0)
    layer.bias.grad = torch.tensor([4.0])
    optimizers = [torch.optim.SGD([each], lr=0.0) for each in (layer.weight, layer.bias)]
    assert update(optimizers, NOT_SCALED, 0.1, max_grad_norm=1.0) == pytest.approx(5.0)
    assert layer.weight.tolist() == [pytest.approx([0.94, 1.0])] and layer.bias.tolist() == pytest.approx([0.92])
    assert layer.weight.grad is None and layer.bias.grad is None


def test_a_gradient_that_is_no_number_is_told():
    layer = layer_with_gradient(math.nan, 1.0)
    assert math.isnan(update(make_optimizers(layer, SGD), NOT_SCALED, 0.1, max_grad_norm=1.0))
