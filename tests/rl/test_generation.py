"""How a generation is cut into micro-batches, with weights and masks: completions without a loss are skipped."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from posttrain.data.curriculum.micro_batches import MicroBatchSize
from posttrain.rl.generation import Cutter, Generation
from posttrain.rl.objective import PolicyObjective
from posttrain.rl.presets import Objective
from posttrain.rl.rollout.collect.segments import NOTHING
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.schedule import RolloutSchedule
from rl.written_rollouts import a_prompt, a_rollout

LONGEST = 4
# Two groups of four with 1 to 4 tokens; the first has one best completion, and the second's are all equal.
REWARDS = [1.0, 0.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


def rollouts(rewards: list[float | None] | list[float] = REWARDS, **fields: Any) -> list[Rollout]:
    prompts = [a_prompt(slot, [5] * (3 + slot)) for slot in range(len(rewards) // 4)]
    return [
        a_rollout(
            prompts[number // 4],
            number % 4,
            [20 + number] * (1 + number % 4),
            reward,
            status="ok" if reward is not None else "abstain",
            **fields,
        )
        for number, reward in enumerate(rewards)
    ]


def cut(
    made: list[Rollout],
    size: int = 4,
    rank: int = 0,
    ranks: int = 1,
    schedule: RolloutSchedule | None = None,
    **objective: Any,
) -> Generation:
    schedule = schedule or RolloutSchedule(len(made), 4)
    chosen: dict[str, Any] = {"scale_rewards": "none", "aggregation": "constant", **objective}
    policy = PolicyObjective(Objective(**chosen))
    generation = Generation.of(0, made, policy, 4, len(made) // schedule.rows_per_step)
    Cutter(policy, schedule, MicroBatchSize(size), rank, ranks, LONGEST, 0, torch.device("cpu")).cut(generation)
    return generation


def first_tokens(generation: Generation, part: int = 0) -> list[list[int]]:
    """The first token of each completion, per micro-batch; it identifies the completion."""
    return [
        [int(row[row >= 0][0]) for row in each.completions.labels if (row >= 0).any()]
        for each in generation.parts[part]
    ]


def test_rewards_become_advantages_and_a_missing_one_is_nan() -> None:
    generation = cut(rollouts([1.0, 0.0, None, 0.5, 0.25, 0.25, 0.25, 0.25]))
    assert math.isnan(generation.rewards[0, 2])
    assert generation.advantages.tolist() == [[0.5, -0.5, 0.0, 0.0], [0.0] * 4]
    assert generation.trained == [True, True, False, False, False, False, False, False]


def test_only_what_has_an_advantage_goes_through_the_model() -> None:
    generation = cut(rollouts())
    # In the first group two of four completions equal the mean; the second group is skipped.
    assert first_tokens(generation) == [[20, 21]]
    (micro_batch,) = generation.parts[0]
    assert micro_batch.advantages.tolist() == [[0.5], [-0.5]]
    assert micro_batch.mask.tolist() == [[True, False], [True, True]]
    # Normalized over all completions of the step, including the skipped ones: 1 / (8 · 4).
    assert micro_batch.weights.unique().tolist() == [0.0, 1 / 32]


@pytest.mark.parametrize("objective", [{"beta": 0.04}, {"top_entropy_quantile": 0.5}])
def test_where_others_have_a_loss_all_go_through_it(objective: dict[str, float]) -> None:
    assert first_tokens(cut(rollouts(), **objective)) == [[24, 25, 26, 27], [20, 21, 22, 23]]


def test_where_nothing_has_a_loss_one_completion_is_computed_that_weighs_it_by_nothing() -> None:
    generation = cut(rollouts([0.5] * 8))
    (micro_batch,) = generation.parts[0]
    assert len(micro_batch.completions.input_ids) == 1
    assert micro_batch.advantages.tolist() == [[0.0]]
    assert not any(generation.trained)


def test_a_completion_that_was_cut_is_left_out_where_the_objective_says_so() -> None:
    made = rollouts(was_cut=True)
    assert any(cut(made).trained)
    generation = cut(made, mask_truncated_completions=True)
    assert not any(generation.trained)
    assert not generation.parts[0][0].mask.any()


def test_a_prompt_that_is_too_long_has_no_loss_not_even_by_a_divergence() -> None:
    too_long = a_prompt(1, range(50), is_too_long=True)
    made = rollouts()[:4] + [a_rollout(too_long, sample, [], None) for sample in range(4)]
    assert first_tokens(cut(made, beta=0.04)) == [[20, 21, 22, 23]]


def test_a_micro_batch_of_empty_slots_takes_nothing_from_the_others_weights() -> None:
    # Two of four groups are there, in a micro-batch each, with 1 + 2 + 3 + 4 tokens: 1 / (2 · 10).
    made = rollouts([1.0, 0.0, 0.0, 0.0] * 2) + [NOTHING] * 8
    objective: dict[str, Any] = {"aggregation": "micro_batch_mean"}
    first, second = cut(made, **objective).parts[0]
    for each in (first, second):
        assert each.weights[each.mask].tolist() == pytest.approx([1 / 20] * 10)
    # A group without a reward is there, and counts as a micro-batch: 1 / (3 · 10).
    graded_none = [a_rollout(a_prompt(2), sample, [7], None, status="abstain") for sample in range(4)]
    first, second = cut(made[:8] + graded_none + made[12:], **objective).parts[0]
    assert first.weights.unique().tolist() == pytest.approx([0.0, 1 / 30])


def test_only_a_slot_that_is_left_empty_takes_nothing_from_the_others_weights() -> None:
    # Of two groups, one has a prompt that is too long: 1 / (8 · 4), or 1 / (4 · 4) if it is left out.
    too_long = [a_rollout(a_prompt(1, is_too_long=True), sample, []) for sample in range(4)]
    for others, weight in ((too_long, 1 / 32), ([replace(each, is_left_out=True) for each in too_long], 1 / 16)):
        (micro_batch,) = cut(rollouts()[:4] + others).parts[0]
        assert micro_batch.weights.unique().tolist() == [0.0, weight]


def test_a_generation_is_cut_into_the_steps_that_it_serves() -> None:
    better = [1.0, 0.0, 0.0, 0.0]
    generation = cut(rollouts(better * 4), schedule=RolloutSchedule(8, 4, 2))
    assert len(generation.parts) == 2
    # Between otherwise equal groups, the one with the longer prompt comes first.
    assert first_tokens(generation, 0) == [[24, 25, 26, 27], [20, 21, 22, 23]]
    assert first_tokens(generation, 1) == [[32, 33, 34, 35], [28, 29, 30, 31]]


def test_ranks_share_the_completions_and_make_as_many_passes() -> None:
    better = [1.0, 0.0, 0.0, 0.0]
    # Four groups, one with nothing to learn.
    made = rollouts([*better, *better, *better, *[0.5] * 4])
    shares = [cut(made, rank=rank, ranks=2) for rank in (0, 1)]
    assert [len(each.parts[0]) for each in shares] == [2, 2]
    seen = [token for each in shares for tokens in first_tokens(each) for token in tokens]
    assert sorted(seen)[:12] == list(range(20, 32))


def test_a_group_is_trained_by_one_rank_in_one_step_and_its_advantages_sum_to_0() -> None:
    rewards = [number**2 % 7 / 7 for number in range(32)]  # eight groups, in two steps
    sums: list[dict[tuple[int, int], float]] = []
    for rank in (0, 1):
        sums.append({})
        for step, part in enumerate(cut(rollouts(rewards), 2, rank, 2, RolloutSchedule(16, 4, 2)).parts):
            for each in part:
                for row, (advantage,) in zip(each.rows, each.advantages.tolist(), strict=True):
                    group = step, row // 4
                    sums[rank][group] = sums[rank].get(group, 0.0) + advantage
    assert len(sums[0]) == len(sums[1]) == 4
    assert not sums[0].keys() & sums[1].keys()
    assert [*sums[0].values(), *sums[1].values()] == [pytest.approx(0, abs=1e-6)] * 8


def test_the_engine_s_log_probabilities_are_padded_beside_the_tokens() -> None:
    made = [a_rollout(a_prompt(0), n, [7] * (n + 1), n / 4, logprobs=[-0.5] * (n + 1)) for n in range(4)]
    (micro_batch,) = cut(made).parts[0]
    assert micro_batch.sampling_logprobs is not None
    assert micro_batch.sampling_logprobs.tolist()[0] == [-0.5, 0.0, 0.0, 0.0]
    assert cut(rollouts()).parts[0][0].sampling_logprobs is None
