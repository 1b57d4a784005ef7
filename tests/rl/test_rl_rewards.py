"""What TRL makes of the rewards: the advantages, with nothing in the place of a reward that is not there."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerState

from posttrain.dataserver.schemas import GradeResult
from posttrain.errors import RunError
from posttrain.rl.clock import Clock
from posttrain.rl.rewards import TotalReward, statistics
from posttrain.rl.rollout.prompts import Prompt
from posttrain.rl.rollout.rollouts import Timer
from posttrain.rl.transcript import GradedCompletion
from rl.rl_runs import write_run
from rl.rl_trainers import Rewards, WrittenServer, a_trainer, first_generation


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, tuple[Any, WrittenServer]]:
    """A trainer for each way to scale rewards, and the server that it asks."""
    made = {}
    for scale in ("group", "batch", "none"):
        server = WrittenServer()
        config = write_run(tmp_path_factory.mktemp(scale), tiny_model)
        made[scale] = (a_trainer(config, server, f"objective.scale_rewards={scale}"), server)
    return made


def advantages(trainers: dict[str, tuple[Any, WrittenServer]], scale: str, rewards: Rewards) -> list[float]:
    trainer, server = trainers[scale]
    trainer._metrics["train"].clear()
    server.rewards = list(rewards)
    return first_generation(trainer)["advantages"].tolist()


# Mean 2/3 over the three that are judged; their sample standard deviation is √((1 + 4 + 1)/9 / 2) = √(1/3). With a 0
# in the place of the abstention the mean would be 1/2, and its own advantage not 0.
DEVIATION = (1 / 3) ** 0.5 + 1e-4


@pytest.mark.parametrize(
    ("scale", "judged"),
    [
        ("none", [1 / 3, -2 / 3, 0.0, 1 / 3]),
        ("group", [1 / 3 / DEVIATION, -2 / 3 / DEVIATION, 0.0, 1 / 3 / DEVIATION]),
    ],
)
def test_an_abstention_is_left_out_of_its_group_and_has_no_advantage(
    trainers: dict[str, Any], scale: str, judged: list[float]
) -> None:
    found = advantages(trainers, scale, [1.0, 0.0, None, 1.0, 0.5, 0.5, 0.5, 0.5])

    assert found[:4] == pytest.approx(judged, abs=1e-6)
    assert found[4:] == [0.0] * 4


def test_an_abstention_is_left_out_of_the_deviation_of_a_batch(trainers: dict[str, Any]) -> None:
    # Six are judged: 1, 0, 1 and 1, 0, 0; the mean of all is 1/2, so the deviation √(6/4 / 5) = √0.3.
    found = advantages(trainers, "batch", [1.0, 0.0, None, 1.0, 1.0, 0.0, 0.0, None])

    deviation = 0.3**0.5 + 1e-4
    wanted = [1 / 3, -2 / 3, 0.0, 1 / 3, 2 / 3, -1 / 3, -1 / 3, 0.0]
    assert found == pytest.approx([each / deviation for each in wanted], abs=1e-6)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_with_fewer_than_two_rewards_teaches_nothing(trainers: dict[str, Any], scale: str) -> None:
    found = advantages(trainers, scale, [None, None, None, 1.0, None, None, None, None])
    assert found == [0.0] * 8


def test_rewards_and_abstentions_are_measured_apart(trainers: dict[str, Any]) -> None:
    trainer, _ = trainers["none"]
    advantages(trainers, "none", [1.0, 0.0, None, 1.0, 0.5, 0.5, 0.5, 0.5])
    measured = {name: values[0] for name, values in trainer._metrics["train"].items()}

    assert measured["reward"] == pytest.approx(4 / 7)
    assert measured["abstained"] == pytest.approx(1 / 8)
    assert measured["graders/it"] == pytest.approx(4 / 7)
    assert measured["rewards/a"] == pytest.approx(4 / 7)
    assert measured["frac_reward_zero_std"] == pytest.approx(1 / 2)
    assert (measured["failed"], measured["too_long_prompts"]) == (0, 0)


def test_the_server_is_told_slot_length_and_cut_of_each_completion(trainers: dict[str, Any]) -> None:
    trainer, server = trainers["none"]
    server.rewards = [0.0] * 8
    server.graded.clear()
    batch = first_generation(trainer)
    ((iteration, label, items),) = server.graded

    assert (iteration, label) == (0, "train-0-0")
    assert [item.slot for item in items] == [0] * 4 + [1] * 4
    assert [item.sample_id for item in items] == ["train:0:0"] * 4 + ["train:0:1"] * 4
    assert [item.completion_tokens for item in items] == batch["completion_mask"].sum(dim=1).tolist()
    # A completion that does not end by the end token was cut at 8 tokens.
    ends = [ids[mask.bool()][-1].item() in trainer.eos_token_ids for ids, mask in completions(batch)]
    assert [item.truncated for item in items] == [not ended for ended in ends]
    assert all(item.completion_tokens == 8 for item in items if item.truncated)


def completions(batch: dict[str, Any]) -> Any:
    return zip(batch["completion_ids"], batch["completion_mask"], strict=True)


def test_completions_of_another_step_are_not_graded() -> None:
    clock = Clock.of_step(8, 4, 1, 4)
    server = WrittenServer([1.0] * 8)

    with pytest.raises(RunError, match="the clock is off: completions of iteration 2 are graded at step 3"):
        TotalReward(server, clock, Timer(), 0)(
            completion_ids=[[1]],
            trainer_state=TrainerState(global_step=3),
            generation=[2],
            asked=[],
            text=[],
            truncated=[],
        )
    assert server.graded == []


def test_what_has_no_result_is_no_part_of_any_mean() -> None:
    prompt = Prompt("a:1", "a", 0, (1, 2), "text", is_too_long=False)
    too_long = Prompt("a:2", "a", 1, (1, 2), "text", is_too_long=True)
    failed = GradeResult(item_id="0", status="error", reward=None, reason="", components={})
    graded = [GradedCompletion(prompt, "", 1, False, failed), GradedCompletion(too_long, "", 1, False, None)]

    assert statistics(graded) == [
        ("too_long_prompts", 0.0),
        ("truncated_share", 0.0),
        ("abstained", 0.0),
        ("failed", 1.0),
        ("too_long_prompts", 1.0),
        ("truncated_share", 0.0),
    ]
