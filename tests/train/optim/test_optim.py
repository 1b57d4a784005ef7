"""The optimizer of a config, and one update with it."""

import math

import pytest
import torch
from torch import nn

from posttrain.config.sections.training import TrainingConfig
from posttrain.train.optim.optimizer import make_optimizer, update

NOT_SCALED = torch.amp.GradScaler("cpu", enabled=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def model_with_gradient(*gradient: float) -> Model:
    model = Model()
    with torch.no_grad():
        model.linear.weight.fill_(1.0)
        model.linear.bias.fill_(1.0)
    model.linear.weight.grad = torch.tensor([gradient])
    model.linear.bias.grad = torch.zeros(1)
    return model


def test_the_optimizer_has_what_is_trained_and_only_matrices_decay():
    optimizer = make_optimizer(Model(), TrainingConfig(weight_decay=0.1))
    decays = {tuple(each.shape): group["weight_decay"] for group in optimizer.param_groups for each in group["params"]}
    assert decays == {(1, 2): 0.1, (1,): 0.0}


def test_adam_has_the_numbers_of_the_config():
    settings = TrainingConfig(beta1=0.8, beta2=0.95, epsilon=1e-6, learning_rate=3e-4)
    optimizer = make_optimizer(Model(), settings)
    assert isinstance(optimizer, torch.optim.AdamW)
    group = optimizer.param_groups[0]
    assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.95), 1e-6, 3e-4)


def test_a_step_of_sgd_is_the_learning_rate_times_the_gradient():
    model = model_with_gradient(3.0, 4.0)
    optimizer = make_optimizer(model, TrainingConfig(optimizer="sgd", learning_rate=99.0))
    assert update(optimizer, NOT_SCALED, 0.1, max_grad_norm=0) == pytest.approx(5.0)
    assert model.linear.weight.tolist() == [pytest.approx([0.7, 0.6])]
    assert model.linear.weight.grad is None


@pytest.mark.parametrize(("limit", "expected"), [(1.0, [0.94, 0.92]), (10.0, [0.7, 0.6])])
def test_a_longer_gradient_is_cut_to_the_limit_and_its_own_norm_is_told(limit: float, expected: list[float]):
    # (3, 4) has norm 5; clipped to norm 1 it is (0.6, 0.8).
    model = model_with_gradient(3.0, 4.0)
    optimizer = make_optimizer(model, TrainingConfig(optimizer="sgd"))
    assert update(optimizer, NOT_SCALED, 0.1, max_grad_norm=limit) == pytest.approx(5.0)
    assert model.linear.weight.tolist() == [pytest.approx(expected, rel=1e-4)]


def test_a_gradient_that_is_no_number_is_told():
    model = model_with_gradient(math.nan, 1.0)
    optimizer = make_optimizer(model, TrainingConfig(optimizer="sgd"))
    assert math.isnan(update(optimizer, NOT_SCALED, 0.1, max_grad_norm=1.0))
