"""The optimizer of a config, one update with it, and the learning rate of each step, also after a resume."""

import math

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from posttrain.config.sections.training import TrainingConfig
from posttrain.train.optim import learning_rate, make_optimizer, schedule_change, update

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


LINEAR = TrainingConfig(learning_rate=1e-3, schedule="linear")
WARM = TrainingConfig(learning_rate=1e-3, schedule="linear", warmup_steps=2)


def rates(training: TrainingConfig, max_steps: int, *steps: int) -> list[float]:
    return [learning_rate(training, max_steps, step) for step in steps]


def test_a_linear_schedule_falls_to_zero_at_the_last_step():
    assert rates(LINEAR, 10, 0, 1, 5, 9, 10) == pytest.approx([1e-3, 9e-4, 5e-4, 1e-4, 0])


def test_a_warm_up_rises_from_zero_and_the_rest_falls_from_the_peak():
    # 0, 1/2, then 8/8, 7/8, ... 1/8 of the peak.
    expected = [0, 5e-4, 1e-3, 8.75e-4, 7.5e-4, 1.25e-4, 0]
    assert rates(WARM, 10, 0, 1, 2, 3, 4, 9, 10) == pytest.approx(expected)


def test_a_cosine_schedule_is_half_way_down_in_the_middle():
    cosine = TrainingConfig(learning_rate=2e-3, schedule="cosine")
    assert rates(cosine, 8, 0, 4, 8) == pytest.approx([2e-3, 1e-3, 0])
    # 1 + cos(π/4) = 1 + 1/√2
    assert rates(cosine, 8, 2) == pytest.approx([1e-3 * (1 + 2**-0.5)])


def test_a_cosine_schedule_may_end_above_zero():
    floor = TrainingConfig(learning_rate=2e-3, schedule="cosine", min_learning_rate_ratio=0.1)
    assert rates(floor, 8, 0, 4, 8) == pytest.approx([2e-3, 1.1e-3, 2e-4])


def test_a_constant_schedule_stays_where_it_is_after_its_warm_up():
    constant = TrainingConfig(learning_rate=1e-3, schedule="constant")
    assert rates(constant, 10, 0, 5, 9) == [1e-3, 1e-3, 1e-3]
    warm = TrainingConfig(learning_rate=1e-3, schedule="constant", warmup_steps=4)
    assert rates(warm, 10, 0, 1, 3, 4, 9) == pytest.approx([0, 2.5e-4, 7.5e-4, 1e-3, 1e-3])


@pytest.mark.parametrize(
    ("training", "name", "options"),
    [
        ({"schedule": "linear", "warmup_steps": 3}, "linear", {}),
        ({"schedule": "cosine"}, "cosine", {}),
        ({"schedule": "cosine", "min_learning_rate_ratio": 0.2, "warmup_steps": 1}, "cosine_with_min_lr", None),
        ({"schedule": "constant", "warmup_steps": 2}, "constant_with_warmup", {}),
    ],
    ids=str,
)
def test_the_rates_are_those_of_transformers_schedulers(training, name, options):
    config = TrainingConfig(learning_rate=1e-3, **training)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=config.warmup_steps,
        num_training_steps=9,
        scheduler_specific_kwargs={"min_lr_rate": 0.2} if options is None else options,
    )
    for step in range(9):
        assert learning_rate(config, 9, step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_a_longer_run_says_how_the_rate_jumps_and_what_that_means():
    # The rate is 5/10 of the peak at step 5 of 10, and 15/20 at step 5 of 20.
    assert schedule_change(LINEAR, 10, LINEAR, 20, 5) == (
        "the schedule now spans 20 steps instead of 10: at step 5 the learning rate goes from 0.0005 to 0.00075, "
        "so the run differs from one that had 20 from the start"
    )


def test_another_rate_over_the_same_steps_is_told_too():
    double = TrainingConfig(learning_rate=2e-3, schedule="linear")
    assert schedule_change(LINEAR, 10, double, 10, 5) == (
        "the schedule changed: at step 5 the learning rate goes from 0.0005 to 0.001, "
        "so the run differs from one that had it from the start"
    )


def test_the_same_schedule_needs_no_words():
    assert schedule_change(WARM, 10, WARM, 10, 5) is None


def test_more_steps_at_a_constant_rate_are_the_same_run():
    constant = TrainingConfig(schedule="constant")
    assert schedule_change(constant, 10, constant, 20, 5) is None


def test_a_change_during_a_warm_up_that_stays_as_it_is_changes_nothing_so_far():
    # Steps 0 and 1 have the same rates in both; all later steps follow the new schedule.
    assert schedule_change(WARM, 10, WARM, 20, 2) is None
    assert schedule_change(WARM, 10, WARM, 20, 3) is None  # step 2 was at the peak
    assert schedule_change(WARM, 10, WARM, 20, 4) is not None  # step 3 was not


def test_before_the_first_step_every_schedule_is_new():
    assert schedule_change(LINEAR, 10, WARM, 20, 0) is None
