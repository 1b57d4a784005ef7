"""A generation's metrics against values computed by hand."""

import math

import pytest
import torch

from posttrain.rl.generation import Generation
from posttrain.rl.report import generation_metrics, step_facts, zero_variance_share
from posttrain.rl.rollout.choice import by_place, choose
from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.rollout import Rollout, rollout_means
from rl.written_rollouts import a_prompt, a_rollout


def a_generation(rollouts: list[Rollout]) -> Generation:
    rewards = torch.tensor([math.nan if each.reward is None else each.reward for each in rollouts]).view(-1, 4)
    return Generation(
        0, rollouts, rewards, torch.zeros_like(rewards), len(rollouts), trained=[True, *[False] * (len(rollouts) - 1)]
    )


def test_rewards_and_abstentions_are_measured_apart() -> None:
    rewards = [1.0, 0.0, None, 1.0, 0.5, 0.5, 0.5, 0.5]
    rollouts = [
        a_rollout(
            a_prompt(n // 4),
            n % 4,
            [7] * (n + 1),
            reward,
            status="ok" if reward is not None else "abstain",
            was_cut=n == 7,
        )
        for n, reward in enumerate(rewards)
    ]
    found = generation_metrics(a_generation(rollouts), choose(by_place(rollouts), RolloutConfig(), 0), filtered=False)

    there = torch.tensor([each for each in rewards if each is not None])
    assert found["reward"] == pytest.approx(4 / 7)
    assert found["reward_std"] == pytest.approx(float(there.std()))
    assert found["rewards/a"] == found["graders/it"] == pytest.approx(4 / 7)
    assert found["zero_variance_share"] == 0.5
    assert found["trained_share"] == found["abstained"] == found["truncated_share"] == 1 / 8
    assert (found["failed"], found["too_long_prompts"]) == (0, 0)
    assert (found["completion_tokens"], found["longest_completion"]) == (4.5, 8.0)


def test_what_has_no_result_is_no_part_of_any_mean() -> None:
    failed = a_rollout(a_prompt(0), 0, [7], None, status="error")
    too_long = a_rollout(a_prompt(1, is_too_long=True), 0, [])

    assert rollout_means([failed, too_long]) == {
        "too_long_prompts": 0.5,
        "truncated_share": 0.0,
        "abstained": 0.0,
        "failed": 1.0,
    }


def test_a_generation_without_any_reward_says_so() -> None:
    rollouts = [a_rollout(a_prompt(0), n, [7], None, status="abstain") for n in range(4)]
    found = generation_metrics(a_generation(rollouts), choose(by_place(rollouts), RolloutConfig(), 0), filtered=False)
    assert (found["reward"], found["reward_std"], found["abstained"]) == (None, None, 1.0)


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([[1.0, 1.0], [1.0, 0.0]], 0.5),
        ([[1.0, math.nan], [1.0, 1.0]], 1.0),  # a single reward has no variance
        ([[math.nan, math.nan]], 0.0),
        ([[0.3, 0.1 + 0.2]], 1.0),
    ],
)
def test_prompts_whose_rewards_are_all_equal_are_counted(rewards: list[list[float]], share: float) -> None:
    assert zero_variance_share(torch.tensor(rewards, dtype=torch.float64)) == share


def test_a_step_tells_how_many_groups_each_filter_rejected() -> None:
    # Two groups of four are all equal, one is too long: the first filter that rejects a group is counted.
    rewards = [*[1.0] * 4, *[0.0] * 4, *[0.0, 1.0] * 4]
    rollouts = [a_rollout(a_prompt(n // 4), n % 4, [7] * (5 if n == 12 else 1), each) for n, each in enumerate(rewards)]
    filters = [{"kind": "reward_spread"}, {"kind": "length", "max_tokens": 4, "of": "any"}]
    choice = choose(by_place(rollouts), RolloutConfig.model_validate({"filters": filters}), 0)
    row = {"loss": 0.5, "seconds": {"all": 1.0}}

    found = generation_metrics(a_generation(rollouts), choice, filtered=True)
    assert "accepted 25%  rejected length 1  rejected reward_spread 2  " in step_facts({**row, **found}, is_apart=False)
    assert "rejected" not in step_facts(
        {**row, "rollouts/accepted_share": 1.0, "rollouts/groups_asked": 4.0}, is_apart=False
    )
    assert "accepted" not in step_facts(row, is_apart=False)


@pytest.mark.parametrize(
    ("age", "is_apart", "told"),
    [
        ({}, False, "loss 0.5000  3.0 s"),
        ({}, True, "loss 0.5000  3.0 s (waited 1.0, engine 0.2)"),  # one generation after the other, in a child process
        ({"async/age_mean": 1.5}, True, "loss 0.5000  age 1.5  3.0 s (waited 1.0, engine 0.2)"),
        ({"async/age_mean": 1.5}, False, "loss 0.5000  age 1.5  3.0 s"),  # replayed by the training model itself
    ],
)
def test_a_step_tells_who_waited_if_the_engine_runs_beside_the_trainer(
    age: dict[str, float], is_apart: bool, told: str
) -> None:
    row = {"loss": 0.5, "seconds": {"all": 3.0, "wait": 1.0, "engine_idle": 0.2}, **age}
    assert step_facts(row, is_apart=is_apart) == told
