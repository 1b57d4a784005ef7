"""The learning rate of each step, also after a resume with another schedule."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_scheduler

from posttrain.config.sections.optim.schedules import ScheduleConfig, ScheduleName
from posttrain.config.sections.training import TrainingConfig
from posttrain.train.optim.schedules import learning_rate, schedule_change, schedule_in_words

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


def test_a_polynomial_schedule_bends_by_its_power():
    # (1 − p)^3 at p = 0, 1/4, 1/2: 1, 27/64, 1/8.
    cubic = TrainingConfig(learning_rate=1e-3, schedule=ScheduleConfig(kind="polynomial", power=3))
    assert rates(cubic, 8, 0, 2, 4, 8) == pytest.approx([1e-3, 1e-3 * 27 / 64, 1.25e-4, 0])


def test_an_inverse_square_root_halves_after_three_times_its_timescale():
    # √((3·4 + 4) / 4) = 2, counted from the end of the warm-up, whose steps are the timescale.
    falling = TrainingConfig(learning_rate=1e-3, schedule="inverse_sqrt", warmup_steps=4)
    assert rates(falling, 99, 2, 4, 16) == pytest.approx([5e-4, 1e-3, 5e-4])


def test_warmup_stable_decay_falls_in_the_last_tenth_of_all_steps():
    stable = TrainingConfig(learning_rate=1e-3, schedule="warmup_stable_decay", warmup_ratio=0.1)
    # Of 40 steps 4 warm up and 4 decay; two of these later it is half way down.
    assert rates(stable, 40, 3, 4, 20, 36, 38, 40) == pytest.approx([7.5e-4, 1e-3, 1e-3, 1e-3, 5e-4, 0])


def test_cosine_with_restarts_begins_again_at_the_peak():
    restarts = TrainingConfig(learning_rate=1e-3, schedule="cosine_with_restarts")
    assert rates(restarts, 8, 0, 2, 4, 6, 8) == pytest.approx([1e-3, 5e-4, 1e-3, 5e-4, 0])


def test_a_share_of_the_steps_to_warm_up_is_rounded_up():
    # 0.07 × 100 is slightly above 7 in floating point.
    assert [TrainingConfig(warmup_ratio=0.07).warmup(steps) for steps in (10, 100, 101)] == [1, 7, 8]
    assert schedule_in_words(TrainingConfig(warmup_ratio=0.1), 25) == (
        "25, learning rate 0.0002 cosine after 3 warm-up steps"
    )


@pytest.mark.parametrize(
    ("training", "name", "options"),
    [
        ({"schedule": "linear", "warmup_steps": 3}, "linear", {}),
        ({"schedule": "cosine"}, "cosine", {}),
        ({"schedule": "cosine", "warmup_ratio": 0.3}, "cosine", {}),
        ({"schedule": "cosine", "min_learning_rate_ratio": 0.2, "warmup_steps": 1}, "cosine_with_min_lr", 0.2),
        ({"schedule": "constant", "warmup_steps": 2}, "constant_with_warmup", {}),
        ({"schedule": {"kind": "cosine_with_restarts", "cycles": 3}}, "cosine_with_restarts", {"num_cycles": 3}),
        ({"schedule": "cosine_with_restarts", "warmup_steps": 2}, "cosine_with_restarts", {"num_cycles": 2}),
        ({"schedule": "polynomial", "warmup_steps": 2}, "polynomial", {"power": 2, "lr_end": 0}),
        (
            {"schedule": {"kind": "polynomial", "power": 0.5}, "min_learning_rate_ratio": 0.1},
            "polynomial",
            {"power": 0.5, "lr_end": 1e-4},
        ),
        ({"schedule": "inverse_sqrt"}, "inverse_sqrt", {}),
        ({"schedule": "inverse_sqrt", "warmup_steps": 3}, "inverse_sqrt", {}),
        ({"schedule": {"kind": "inverse_sqrt", "timescale": 2}, "warmup_steps": 3}, "inverse_sqrt", {"timescale": 2}),
        ({"schedule": "warmup_stable_decay", "warmup_steps": 2}, "warmup_stable_decay", {"num_decay_steps": 1}),
        (
            {"schedule": {"kind": "warmup_stable_decay", "decay_ratio": 0.5}, "min_learning_rate_ratio": 0.2},
            "warmup_stable_decay",
            {"num_decay_steps": 5, "min_lr_ratio": 0.2},
        ),
    ],
    ids=range(14),
)
def test_the_rates_are_those_of_transformers_schedulers(training, name, options):
    config = TrainingConfig.model_validate({"learning_rate": 1e-3, **training})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    scheduler = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=config.warmup(9),
        num_training_steps=9,
        scheduler_specific_kwargs=options if isinstance(options, dict) else {"min_lr_rate": options},
    )
    for step in range(9):
        assert learning_rate(config, 9, step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12, abs=1e-18)
        optimizer.step()
        scheduler.step()


@given(
    st.sampled_from(get_args(ScheduleName)),
    st.floats(0, 0.5),
    st.floats(0, 0.9),
    st.integers(4, 300),
    st.data(),
)
def test_a_rate_is_never_above_the_peak_nor_below_the_ratio_that_it_ends_at(kind, warmup, lowest, steps, data):
    ends = lowest if kind in ("cosine", "polynomial", "warmup_stable_decay") else 0
    config = TrainingConfig(learning_rate=1.0, schedule=kind, warmup_ratio=warmup, min_learning_rate_ratio=ends)
    step = data.draw(st.integers(config.warmup(steps), steps))
    assert ends - 1e-12 <= learning_rate(config, steps, step) <= 1
    assert learning_rate(config, steps, config.warmup(steps)) == 1


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
