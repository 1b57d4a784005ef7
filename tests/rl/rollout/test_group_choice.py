"""The groups that a generation trains: by hand, with a filter on the mean reward."""

from dataclasses import replace
from pathlib import Path

import pytest

from posttrain.rl.rollout.choice import by_place, choose, in_order
from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.rollout import Rollout
from rl.written_rollouts import a_prompt, a_rollout


def group(slot: int, rewards: tuple[float, float], attempt: int = 0) -> list[Rollout]:
    prompt = a_prompt(slot)
    prompt = type(prompt)(**{**vars(prompt), "attempt": attempt, "sample_id": f"{slot}:{attempt}"})
    return [a_rollout(prompt, number, [7, 8], reward) for number, reward in enumerate(rewards)]


def config(rejected: str) -> RolloutConfig:
    return RolloutConfig.model_validate(
        {"filters": [{"kind": "mean_reward", "max": 0.6}], "rejected": rejected, "generations": 2}
    )


# Slots 0 and 2 are too easy; of the substitutes for slot 0, the second one is not.
ASKED = [
    *group(0, (1.0, 1.0)),
    *group(1, (1.0, 0.0)),
    *group(2, (1.0, 0.5)),
    *group(0, (1.0, 1.0), attempt=1),
    *group(0, (0.0, 1.0), attempt=2),
]


@pytest.mark.parametrize(
    ("rejected", "asked", "trained", "tokens"),
    [
        ("keep", ASKED[:6], ["0:0", "1:0", "2:0"], [4, 4, 4]),
        ("drop", ASKED[:6], ["0:0", "1:0", "2:0"], [0, 4, 0]),
        ("substitute", ASKED, ["0:2", "1:0", "2:0"], [4, 4, 4]),
    ],
)
def test_each_slot_trains_its_group_a_substitute_or_nothing(
    rejected: str, asked: list[Rollout], trained: list[str], tokens: list[int]
) -> None:
    choice = choose(by_place(asked), config(rejected), 0)
    found = choice.trained
    assert [each.prompt.sample_id for each in found[::2]] == trained
    assert [sum(each.tokens for each in found[start : start + 2]) for start in (0, 2, 4)] == tokens
    assert [each.is_left_out for each in found[::2]] == [count == 0 for count in tokens]
    assert [each.prompt.sample_id for each in choice.asked[::2]] == ["0:0", "1:0", "2:0"]


@pytest.mark.parametrize(("rejected", "left_out"), [("keep", [False] * 4), ("drop", [False, False, True, True])])
def test_a_rejected_group_counts_as_a_completion_unless_it_is_dropped_too_long_or_not(
    rejected: str, left_out: list[bool]
) -> None:
    too_long = a_prompt(1, is_too_long=True)
    asked = [*group(0, (0.0, 1.0)), *[a_rollout(too_long, sample, []) for sample in range(2)]]
    rejecting = RolloutConfig.model_validate({"filters": [{"kind": "reward_spread"}], "rejected": rejected})
    assert [each.is_left_out for each in choose(by_place(asked), rejecting, 0).trained] == left_out


def test_groups_that_were_begun_in_different_iterations_are_each_judged_by_their_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def odd(completions, _):\n    return 'odd' if completions[0]['iteration'] % 2 else None\n"
    )
    own = {"filters": [{"kind": "python", "path": f"{tmp_path}/own.py:odd"}], "segment_tokens": 2}
    prompts = [replace(a_prompt(slot), iteration=iteration) for slot, iteration in ((1, 2), (0, 3), (0, 4))]
    whole = [a_rollout(prompt, sample, [7]) for prompt in prompts for sample in range(2)]
    found = choose(in_order(whole), RolloutConfig.model_validate(own), None).verdicts
    assert [place.slot for place, each in found.items() if each is not None] == [1]


def test_what_the_filters_did_is_counted_in_shares_of_the_groups_and_of_the_slots() -> None:
    assert choose(by_place(ASKED), config("substitute"), 0).metrics() == {
        "filters/mean_reward": 3 / 5,
        "rollouts/accepted_share": 2 / 3,
        "rollouts/substituted_share": 1 / 3,
        "rollouts/groups_asked": 5,
        "rollouts/groups_unused": 0,
    }


def test_without_filters_everything_is_trained() -> None:
    choice = choose(by_place(ASKED[:6]), RolloutConfig(generations=2), 0)
    assert choice.trained == choice.asked == ASKED[:6]
