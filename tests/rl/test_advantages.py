"""Advantages against values computed by hand and, where TRL has the same formula, against TRL."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from posttrain.rl.advantages import advantages
from posttrain.rl.presets import Baseline, Scale

NAN = math.nan
# The first group has mean 1/2 and sample deviation √(((1/2)² · 2 + 0 + 0) / 3) = √(1/6); the second's are all equal.
REWARDS = [[1.0, 0.0, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25]]
GROUP_DEVIATION = math.sqrt(1 / 6) + 1e-4
# Over all eight: mean 3/8, deviation √((25 + 9 + 1 + 1 + 4·1) / 64 / 7) = √(40 / 448).
BATCH_DEVIATION = math.sqrt(40 / 448) + 1e-4


def found(rewards: list[list[float]], baseline: Baseline, scale: Scale) -> list[list[float]]:
    return advantages(torch.tensor(rewards, dtype=torch.float64), baseline, scale).tolist()


def near(rows: list[list[float]]) -> list[object]:
    return [pytest.approx(row, abs=1e-12) for row in rows]


@pytest.mark.parametrize(
    ("baseline", "wanted"),
    [
        ("group", [[0.5, -0.5, 0.0, 0.0], [0.0] * 4]),
        # The means of the others: 1/3, 2/3, 1/2, 1/2.
        ("leave_one_out", [[2 / 3, -2 / 3, 0.0, 0.0], [0.0] * 4]),
        ("batch", [[0.625, -0.375, 0.125, 0.125], [-0.125] * 4]),
        ("none", REWARDS),
    ],
)
def test_a_baseline_is_taken_from_each_reward(baseline: Baseline, wanted: list[list[float]]) -> None:
    assert found(REWARDS, baseline, "none") == near(wanted)
    assert found(REWARDS, baseline, "batch") == near([[each / BATCH_DEVIATION for each in row] for row in wanted])


def test_a_group_is_divided_by_its_own_deviation() -> None:
    assert found(REWARDS, "group", "group") == near([[0.5 / GROUP_DEVIATION, -0.5 / GROUP_DEVIATION, 0, 0], [0.0] * 4])


# The three judged completions have mean 2/3 and sample deviation √((1 + 4 + 1)/9 / 2) = √(1/3). If the abstention
# counted as 0, the mean would be 1/2 and its own advantage would not be 0.
ABSTAINED = [[1.0, 0.0, NAN, 1.0]]


@pytest.mark.parametrize(
    ("baseline", "scale", "wanted"),
    [
        ("group", "none", [1 / 3, -2 / 3, 0.0, 1 / 3]),
        ("group", "group", [each / (math.sqrt(1 / 3) + 1e-4) for each in (1 / 3, -2 / 3, 0.0, 1 / 3)]),
        ("leave_one_out", "none", [0.5, -1.0, 0.0, 0.5]),
        ("batch", "none", [1 / 3, -2 / 3, 0.0, 1 / 3]),
        ("none", "none", [1.0, 0.0, 0.0, 1.0]),
    ],
)
def test_an_abstention_is_no_part_of_any_mean_and_has_no_advantage(
    baseline: Baseline, scale: Scale, wanted: list[float]
) -> None:
    assert found(ABSTAINED, baseline, scale) == near([wanted])


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("baseline", ["group", "leave_one_out"])
def test_a_group_with_fewer_than_two_rewards_has_no_advantage(baseline: Baseline, scale: Scale) -> None:
    rewards = [[NAN, NAN, NAN, 1.0], [NAN] * 4, [1.0, 0.0, 0.0, 0.0]]
    assert found(rewards, baseline, scale)[:2] == [[0.0] * 4] * 2


def test_a_step_without_any_reward_has_no_advantage() -> None:
    for baseline in ("group", "leave_one_out", "batch", "none"):
        assert found([[NAN] * 4] * 2, baseline, "batch") == [[0.0] * 4] * 2


REWARD_TABLES = st.integers(2, 6).flatmap(
    lambda size: st.lists(
        st.lists(st.floats(0, 1) | st.just(NAN), min_size=size, max_size=size), min_size=1, max_size=5
    )
)


@given(REWARD_TABLES, st.sampled_from(["group", "leave_one_out", "batch", "none"]), st.sampled_from(["group", "none"]))
def test_advantages_are_finite_and_0_where_there_is_no_reward(
    rewards: list[list[float]], baseline: Baseline, scale: Scale
) -> None:
    table = torch.tensor(rewards, dtype=torch.float64)
    made = advantages(table, baseline, scale)
    assert made.isfinite().all()
    assert not made[table.isnan()].any()


@given(REWARD_TABLES, st.sampled_from(["group", "leave_one_out"]), st.sampled_from(["group", "batch", "none"]))
def test_the_advantages_of_a_group_sum_to_0(rewards: list[list[float]], baseline: Baseline, scale: Scale) -> None:
    made = advantages(torch.tensor(rewards, dtype=torch.float64), baseline, scale)
    assert torch.allclose(made.sum(dim=1), torch.zeros(len(rewards), dtype=torch.float64), atol=1e-9)


@given(REWARD_TABLES)
def test_leaving_one_out_is_the_group_s_advantage_times_n_over_n_less_one(rewards: list[list[float]]) -> None:
    table = torch.tensor(rewards, dtype=torch.float64)
    count = (~table.isnan()).sum(dim=1, keepdim=True)
    group, others = (advantages(table, baseline, "none") for baseline in ("group", "leave_one_out"))
    assert torch.allclose(others * (count - 1), group * count * (count > 1), atol=1e-9)


@pytest.mark.parametrize(("baseline", "scale"), [("group", "group"), ("group", "batch"), ("group", "none")])
def test_without_abstentions_they_are_those_of_trl(baseline: Baseline, scale: Scale) -> None:
    """Compares with the code of TRL 1.14's GRPOTrainer on the same rewards."""
    rewards = torch.rand(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    flat = rewards.flatten()
    theirs = flat - rewards.mean(dim=1).repeat_interleave(5)
    if scale != "none":
        deviation = rewards.std(dim=1).repeat_interleave(5) if scale == "group" else flat.std().expand_as(flat)
        theirs = theirs / (deviation + 1e-4)
    assert torch.allclose(advantages(rewards, baseline, scale).flatten(), theirs, atol=1e-12)
