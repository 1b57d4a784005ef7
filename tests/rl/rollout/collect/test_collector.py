"""Which completions the collector requests, with which seeds, and how it treats prompts that are too long."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import ServerError
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    derive_seed,
)
from posttrain.rl.rollout import pipeline as module
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.grading import Abstention
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.recipe import UnavailableError
from rl.rl_recipes import WrittenServer, a_recipe, loss_and_gradient
from rl.rl_runs import WriteRun, folder_of, lines, train_here, training_rows, write_run
from running import metrics


class WrittenEngine:
    """Answers each request with its first prompt token and the sample's number, and records the requests."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []
        self.updates: list[int] = []

    def load(self, weights: Path | None, version: int) -> None:
        self.updates.append(version)

    def score(self, ids: Sequence[int]) -> list[float]:
        raise NotImplementedError

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        self.requests += requests
        return {
            (place, number): Completion((request.prompt_ids[0], number), StopReason.LENGTH)
            for place, request in enumerate(requests)
            for number in range(request.n)
        }

    def close(self) -> None:
        pass


class WrittenPrompts:
    """Prompt `slot` of generation `g` starts with the token 100·g + slot; the slots in `too_long` are too long."""

    def __init__(self, schedule: RolloutSchedule, too_long: Sequence[int] = ()) -> None:
        self._schedule = schedule
        self._too_long = too_long

    def of_generation(self, generation: int) -> list[Prompt]:
        return [
            Prompt(f"{generation}:{slot}", "a", slot, (100 * generation + slot, 7), "text", slot in self._too_long)
            for slot in range(self._schedule.prompts_per_iteration)
        ]


class AwayPrompts:
    """Prompts from a dataserver that does not answer."""

    def of_generation(self, generation: int) -> list[Prompt]:
        raise ServerError("nobody answers")


class Tokenizer:
    eos_token_id = 2

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def collected(
    schedule: RolloutSchedule,
    engine: WrittenEngine,
    generations: Sequence[int],
    prompts: Any = None,
    seed: int = 0,
) -> list[Rollout]:
    """The rollouts of some generations, made one after the other in this process."""
    collector = Collector(
        schedule,
        prompts or WrittenPrompts(schedule),
        engine,
        WrittenServer([0.5] * 1000),
        Tokenizer(),
        lambda iteration: Sampling(max_new_tokens=8, temperature=0.7),
        seed,
    )
    pipeline = RolloutPipeline(OpenedEngine(engine, None, is_apart=False), collector, Abstention(0), max_steps=1000)
    made = []
    for number in generations:
        pipeline.advance(schedule.iteration_of(number))
        made += pipeline.take(number).rollouts
        pipeline.forget(number)
    return made


def one_rank(monkeypatch: pytest.MonkeyPatch, rank: int, ranks: int) -> None:
    """Act as one of several ranks, which gathers only its own results."""
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    monkeypatch.setattr(module, "gather_object", lambda mine: mine)
    monkeypatch.setattr("posttrain.rl.rollout.grading.gather_object", lambda mine: mine)


@given(
    groups=st.integers(1, 4),
    group=st.integers(2, 6),
    ranks=st.integers(1, 4),
    parts=st.integers(1, 3),
    generation=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_seeds_depend_on_seed_generation_slot_and_sample_alone_however_ranks_share_the_groups(
    groups: int, group: int, ranks: int, parts: int, generation: int, seed: int
) -> None:
    schedule = RolloutSchedule(groups * ranks * group, group, parts)
    asked: dict[tuple[int, int], int] = {}
    made: list[Rollout] = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as environment:
            one_rank(environment, rank, ranks)
            engine = WrittenEngine()
            mine = collected(schedule, engine, [generation], seed=seed)
        values = [value for request in engine.requests for value in request.seeds]
        asked |= {(each.prompt.slot, each.sample): value for each, value in zip(mine, values, strict=True)}
        made += mine
    places = list(product(range(schedule.prompts_per_iteration), range(group)))
    assert [(each.prompt.slot, each.sample) for each in made] == places
    assert asked == {(slot, sample): derive_seed(seed, generation, slot, sample) for slot, sample in places}
    assert len(set(asked.values())) == len(asked)


def test_the_engine_is_told_of_the_step_before_each_generation_and_every_token_knows_it() -> None:
    engine = WrittenEngine()
    made = collected(RolloutSchedule(8, 4, 2), engine, [0, 1, 2])
    assert engine.updates == [0, 2, 4]
    assert [sorted(set(each.versions.tolist())) for each in made[::16]] == [[0], [2], [4]]


def test_a_rollout_holds_what_is_known_of_each_token() -> None:
    (first, *_) = collected(RolloutSchedule(8, 4), WrittenEngine(), [3])
    assert (first.prompt.sample_id, first.sample, first.ids.tolist()) == ("3:0", 0, [300, 0])
    assert (first.mask.tolist(), first.temperature, first.was_cut, first.reward) == ([True, True], 0.7, True, 0.5)
    assert (first.text, first.logprobs, first.tokens) == ("300 0", None, 2)


def test_a_prompt_that_is_too_long_is_not_asked_and_not_graded() -> None:
    engine, schedule = WrittenEngine(), RolloutSchedule(8, 4)
    made = collected(schedule, engine, [3], WrittenPrompts(schedule, too_long=[0]))

    assert [request.prompt_ids for request in engine.requests] == [(301, 7)]
    assert [each.tokens for each in made] == [0] * 4 + [2] * 4
    assert [each.was_cut for each in made] == [False] * 4 + [True] * 4
    assert [each.reward for each in made] == [None] * 4 + [0.5] * 4


def test_prompts_that_cannot_be_asked_for_stop_before_anything_is_generated() -> None:
    engine = WrittenEngine()
    with pytest.raises(UnavailableError, match="nobody answers"):
        collected(RolloutSchedule(8, 4), engine, [0], AwayPrompts())
    assert engine.requests == []


LONG = {1: "Say a very long word, such as this: " * 3}


def test_a_too_long_group_has_no_reward_and_no_gradient_not_even_from_the_kl_term(
    tmp_path: Path, tiny_model: Path
) -> None:
    config = write_run(tmp_path, tiny_model)
    server = WrittenServer([1.0, 0.0, 0.5, 0.5], LONG)
    recipe = a_recipe(config, server, "rollout.max_prompt_tokens=40", "objective.beta=10.0")
    micro_batches = recipe.batch(0)
    ((_, _, items),) = server.graded

    assert [item.slot for item in items] == [0] * 4
    assert recipe.generation is not None
    assert recipe.generation.advantages.tolist() == [[0.5, -0.5, 0.0, 0.0], [0.0] * 4]
    # All four of the first group have a divergence; none of the second goes through the model.
    assert [len(each.completions.input_ids) for each in micro_batches] == [4]
    assert loss_and_gradient(recipe, micro_batches)[1].norm() > 0.1
    # dr_grpo divides the sum over all tokens by 8 rows, including the second group's, of 8 tokens.
    assert micro_batches[0].weights.max() == pytest.approx(1 / (8 * 8))


def test_a_run_goes_on_over_prompts_that_are_too_long(a_run: WriteRun) -> None:
    # Prompts have their sentence once, in 15 to 18 tokens, or two or three times, in more than 20.
    config = a_run(rollout={"max_prompt_tokens": 20}, training={"max_steps": 4}, evaluation=None)
    train_here(config)
    run = folder_of(config)
    rows = training_rows(metrics(run))

    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    shares = [row["too_long_prompts"] for row in rows]
    assert set(shares) <= {0.0, 0.5, 1.0}
    assert 0 < sum(shares) < 4
    kept = lines(run / "completions.jsonl")
    assert {line["status"] for line in kept} <= {"ok", "not graded"}
    for row in rows:
        assert (row["reward"] is None) == (row["too_long_prompts"] == 1)
        assert row["too_long_prompts"] < 1 or row["grad_norm"] == 0
