"""Replayed groups and remembered solutions on a real model: their gradient, what is stored, reported and given up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.dataserver.schemas import Sample, Split
from posttrain.rl.recipe import RLRecipe
from posttrain.runs.resume import RunCounters
from posttrain.train.recipe import StepResult
from rl.rl_recipes import (
    WrittenServer,
    a_recipe,
    gradient_by_hand,
    logprobs_by_hand,
    loss_and_gradient,
    move_adapter,
    train_written,
)
from rl.rl_runs import write_run
from running import metrics

REWARDS = [1.0, 0.0, 0.25, 0.5, 0.0, 1.0, 1.0, 0.75]
FOUR_STEPS = "training.max_steps=4"
RESERVED = "rollout.replay={share: 0.9, fill: reserved, max_uses: 1}"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_run(tmp_path_factory.mktemp("replayed"), tiny_model, evaluation=None)


class SamePrompts(WrittenServer):
    """Asks the prompts of iteration 0 in every iteration, and rewards each with rewards of its own."""

    def __init__(self, *rewards: Sequence[float]) -> None:
        super().__init__()
        self.by_iteration = rewards
        self.reports: list[tuple[Any, ...]] = []

    def sample(self, iteration: int, offset: int, batch_size: int, split: Split = "train") -> list[Sample]:
        return super().sample(0, offset, batch_size, split)

    def grade(self, iteration: int, label: str, items: Any) -> Any:
        self.rewards = list(self.by_iteration[min(iteration, len(self.by_iteration) - 1)])
        return super().grade(iteration, label, items)

    def report_step(self, *report: Any) -> None:
        self.reports.append(report)


def end_step(recipe: RLRecipe, step: int) -> dict[str, Any]:
    """Train a step as the loop does, but without changing the weights; returns its line of metrics.jsonl."""
    for each in recipe.batch(step):
        recipe.loss(recipe.loaded.model, each)
    return recipe.count(StepResult(step + 1, 0.0, 1.0, 0.1, 0.1), RunCounters(step=step))[0]


def ratios(recipe: RLRecipe, row: int) -> torch.Tensor:
    """π / μ of each token of a completion."""
    assert recipe.generation is not None
    rollout = recipe.generation.rollouts[row]
    assert rollout.logprobs is not None
    with torch.no_grad():
        return (logprobs_by_hand(recipe.loaded.model, rollout) - torch.from_numpy(rollout.logprobs)).exp()


def test_a_replayed_group_s_gradient_is_that_of_its_own_rewards_times_its_ratios(config: Path) -> None:
    recipe = a_recipe(config, WrittenServer(REWARDS), RESERVED)
    assert end_step(recipe, 0)["rollouts/replayed_share"] == 0.0
    move_adapter(recipe.loaded.model, by=0.15)
    micro_batches = recipe.batch(1)
    _, gradient = loss_and_gradient(recipe, micro_batches)
    assert recipe.generation is not None
    rollouts = recipe.generation.rollouts
    replayed = [number for number, each in enumerate(rollouts) if int(each.versions[0]) == 0]
    assert len(replayed) in (4, 8)
    weights = []
    for number, rollout in enumerate(rollouts):
        group = [each.reward or 0.0 for each in rollouts[number // 4 * 4 : number // 4 * 4 + 4]]
        factors = ratios(recipe, number)
        factors = torch.where((factors < 0.5) | (factors > 2), 0.0, factors)
        weights.append(factors * ((rollout.reward or 0.0) - sum(group) / 4) / 64)
    assert any(float((weights[number] != weights[number][0]).sum()) for number in replayed)  # they do differ
    wanted = gradient_by_hand(recipe, weights)
    assert wanted.norm() > 1e-3
    assert torch.allclose(gradient, wanted, rtol=1e-3, atol=1e-6)


def test_replayed_groups_are_graded_and_generated_once_and_told_as_replayed(config: Path, tmp_path: Path) -> None:
    server = SamePrompts(REWARDS)
    run = train_written(write_run(tmp_path, _model(config), evaluation=None), server, RESERVED, FOUR_STEPS)
    rows = metrics(run.path)
    displaced = [int(row["replay/displaced"]) for row in rows]
    assert any(displaced)
    assert [len(items) for _, _, items in server.graded] == [8 - 4 * count for count in displaced if count < 2]
    for row, (step, numbers, groups, _) in zip(rows, server.reports, strict=True):
        assert step == row["step"]
        assert numbers["rollouts/replayed_share"] == row["rollouts/replayed_share"]
        told = [group for group in groups if group.origin == "replayed"]
        assert len(told) == row["rollouts/replayed_share"] * 2
        assert len(groups) == 2  # every slot has its own group or a replayed one
        assert all(0 < group.age <= 8 and group.verdict == "" and group.trained for group in told)
    # What is trained comes twice, what was asked once: the two curves differ.
    assert any(row["trained_reward"] != row["reward"] for row in rows)


def test_a_group_whose_tokens_are_mostly_beyond_the_limits_is_given_up_after_its_pass(
    config: Path, tmp_path: Path
) -> None:
    # Every ratio but 1 is beyond such limits.
    narrow = ("rollout.importance_limit=1.000001", "rollout.importance_floor=0.999999")
    replay = "rollout.replay={share: 0.5, fill: reserved, max_uses: 9, max_masked_share: 0.5}"
    runs = []
    for name, limits in (("narrow", narrow), ("wide", ())):
        written = write_run(tmp_path / name, _model(config), evaluation=None)
        runs.append(metrics(train_written(written, SamePrompts(REWARDS), replay, FOUR_STEPS, *limits).path))
    for rows, goes in zip(runs, (1.0, 0.0), strict=True):
        replayed = [row for row in rows if row["rollouts/replayed_share"]]
        assert replayed
        assert {row["replay/evicted"] for row in replayed} == {goes}


FAILED = [0.0] * 8
SUCCESSES = "rollout.successes={threshold: 1.0, share: 1.0}"


def test_a_failed_group_gets_the_solution_of_its_prompt_weighted_by_at_most_1(config: Path) -> None:
    server = SamePrompts([0.0, 1.0, 0.0, 0.0, *[0.0] * 4], FAILED)
    recipe = a_recipe(config, server, SUCCESSES)
    assert end_step(recipe, 0)["successes/helped_share"] == 0.0
    assert recipe.generation is not None
    solution = recipe.generation.rollouts[1]
    move_adapter(recipe.loaded.model, by=0.15)
    micro_batches = recipe.batch(1)
    _, gradient = loss_and_gradient(recipe, micro_batches)
    rollouts = recipe.generation.rollouts
    # Only the first prompt was solved; the solution takes its last place, so the advantages are −¼, −¼, −¼ and ¾.
    assert rollouts[3].ids.tolist() == solution.ids.tolist()
    assert [each.reward for each in rollouts] == [0.0, 0.0, 0.0, 1.0, *[0.0] * 4]
    fresh = [torch.full((each.tokens,), -0.25 / 64) for each in rollouts[:3]]
    remembered = ratios(recipe, 3).clamp(max=1.0) * 0.75 / 64
    assert float(ratios(recipe, 3).min()) < 0.9 and float(ratios(recipe, 3).max()) > 1.1
    nothing = [torch.zeros(each.tokens) for each in rollouts[4:]]
    assert torch.allclose(gradient, gradient_by_hand(recipe, [*fresh, remembered, *nothing]), rtol=1e-3, atol=1e-6)
    row = recipe.count(StepResult(2, 0.0, 1.0, 0.1, 0.1), RunCounters(step=1))[0]
    assert (row["successes/helped_share"], row["reward"], row["trained_reward"]) == (0.5, 0.0, 0.125)


def test_a_helped_group_is_told_as_cached_with_the_reward_of_its_own_completions(config: Path, tmp_path: Path) -> None:
    server = SamePrompts([0.0, 1.0, 0.0, 0.0, *[0.0] * 4], FAILED)
    filters = ("rollout.filters=[{kind: reward_spread}]", "rollout.rejected=drop")
    run = train_written(write_run(tmp_path, _model(config), evaluation=None), server, SUCCESSES, FOUR_STEPS, *filters)
    told = [
        [(group.origin, group.mean_reward, group.trained) for group in groups] for _, _, groups, _ in server.reports
    ]
    assert told[0] == [("fresh", 0.25, True), ("fresh", 0.0, False)]
    # A group that the filter rejects is trained all the same once it has a solution in it.
    assert told[1:] == [[("cached", 0.0, True), ("fresh", 0.0, False)]] * 3
    assert [row["trained_share"] > 0 for row in metrics(run.path)] == [True] * 4


def _model(config: Path) -> Path:
    import yaml

    return Path(yaml.safe_load(config.read_text())["model"]["name"])
