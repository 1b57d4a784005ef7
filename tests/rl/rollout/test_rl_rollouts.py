"""Which completions are asked of the engine, under which seeds, and what becomes of prompts that are too long."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerState

from posttrain.errors import ConfigError, RunError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling, StopReason
from posttrain.inference.seeds import derive_seed
from posttrain.rl.clock import Clock
from posttrain.rl.rollout.prompts import Prompt
from posttrain.rl.rollout.rollouts import Rollouts, Timer
from rl.rl_runs import WriteRun, folder_of, lines, train_here, training_rows, write_run
from rl.rl_trainers import WrittenServer, a_trainer, first_generation, gradients, move_adapter
from running import metrics


class WrittenEngine:
    """Answers each request by its first prompt token, and keeps what it was asked."""

    def __init__(self) -> None:
        self.requests: list[GenerationRequest] = []
        self.updates: list[int] = []

    def update(self, step: int) -> None:
        self.updates.append(step)

    def complete(self, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        self.requests += requests
        return {
            (place, number): Completion((request.prompt_ids[0], number), StopReason.LENGTH)
            for place, request in enumerate(requests)
            for number in range(request.n)
        }

    def close(self) -> None:
        pass


class WrittenPrompts:
    """Prompt `slot` of generation `g` begins with the token 100·g + slot; those of `too_long` are too long."""

    def __init__(self, clock: Clock, too_long: Sequence[int] = ()) -> None:
        self._clock = clock
        self._too_long = too_long

    def of_generation(self, generation: int) -> list[Prompt]:
        return [
            Prompt(f"{generation}:{slot}", "a", slot, (100 * generation + slot, 7), "text", slot in self._too_long)
            for slot in range(self._clock.prompts_per_generation)
        ]


class Tokenizer:
    eos_token_id = 2

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


class Trainer:
    def __init__(self, step: int) -> None:
        self.state = TrainerState(global_step=step)


def rollouts(clock: Clock, engine: WrittenEngine, too_long: Sequence[int] = (), seed: int = 0) -> Rollouts:
    prompts: Any = WrittenPrompts(clock, too_long)
    return Rollouts(clock, prompts, engine, Tokenizer(), Sampling(max_new_tokens=8), seed, Timer())


def rank_rows(clock: Clock, generation: int, rank: int) -> list[str]:
    """The rows that TRL's sampler gives a rank: each row G times, in equal pieces."""
    size = clock.prompts_per_generation
    rows = [str(row) for row in range(generation * size, (generation + 1) * size) for _ in range(clock.generations)]
    share = len(rows) // clock.processes
    return rows[rank * share : (rank + 1) * share]


@st.composite
def clocks(draw: st.DrawFn) -> Clock:
    letters = [draw(st.integers(1, 4)) for _ in range(2)]
    generations = draw(st.integers(2, 6))
    steps = draw(st.sampled_from([1, 2, 4]))
    try:
        return Clock(letters[0], letters[1], generations, 2, steps, draw(st.integers(1, 2)))
    except ConfigError:
        return Clock(generations, letters[1], generations, 2, steps, 1)


@given(clock=clocks(), generation=st.integers(0, 5), seed=st.integers(0, 9))
def test_seeds_depend_on_seed_generation_slot_and_sample_alone_however_ranks_share_the_groups(
    clock: Clock, generation: int, seed: int
) -> None:
    asked: dict[tuple[int, int], int] = {}
    with pytest.MonkeyPatch.context() as environment:
        for rank in range(clock.processes):
            environment.setenv("RANK", str(rank))
            engine = WrittenEngine()
            step = clock.iteration_of(generation)
            made = rollouts(clock, engine, seed=seed)(rank_rows(clock, generation, rank), Trainer(step))
            place = rank * len(made["completion_ids"])
            for request in engine.requests:
                slot = request.prompt_ids[0] - 100 * generation
                for value in request.seeds:
                    asked[divmod(place, clock.generations)] = value
                    assert slot == place // clock.generations
                    place += 1
            assert made["generation"] == [generation] * len(made["prompt_ids"])

    places = product(range(clock.prompts_per_generation), range(clock.generations))
    assert asked == {(slot, sample): derive_seed(seed, generation, slot, sample) for slot, sample in places}
    assert len(set(asked.values())) == len(asked)


CLOCK = Clock(4, 1, 4, 2, 2, 1)


@pytest.mark.parametrize("step", [0, 2])
def test_a_row_that_is_asked_at_another_step_than_its_own_stops_the_run(step: int) -> None:
    engine = WrittenEngine()
    with pytest.raises(RunError, match=f"for step {step}, and the prompts are those of iteration 1; nothing was train"):
        rollouts(CLOCK, engine)(rank_rows(CLOCK, 1, 0), Trainer(step))
    assert engine.requests == []


def test_rows_in_disorder_stop_the_run() -> None:
    with pytest.raises(RunError, match="rows in another order"):
        rollouts(CLOCK, WrittenEngine())(rank_rows(CLOCK, 1, 0)[::-1], Trainer(1))


def test_the_engine_is_told_of_the_step_before_each_generation() -> None:
    clock = Clock(4, 1, 4, 2, 1, 1)  # two generations in a step
    engine = WrittenEngine()
    roll_out = rollouts(clock, engine)
    for generation, step in ((0, 0), (1, 0), (2, 1), (3, 1)):
        roll_out(rank_rows(clock, generation, 0), Trainer(step))
    assert engine.updates == [0, 0, 1, 1]


def test_a_prompt_that_is_too_long_is_not_asked_and_stands_for_nothing() -> None:
    engine = WrittenEngine()
    made = rollouts(CLOCK, engine, too_long=[0])(rank_rows(CLOCK, 3, 0), Trainer(3))

    assert [request.prompt_ids for request in engine.requests] == [(301, 7)]
    assert made["prompt_ids"] == [[7]] * 4 + [[301, 7]] * 4
    assert made["completion_ids"] == [[2]] * 4 + [[301, number] for number in range(4)]
    assert made["env_mask"] == [[0]] * 4 + [[1, 1]] * 4
    assert made["truncated"] == [False] * 4 + [True] * 4


def test_nothing_is_left_out_of_the_loss_where_no_prompt_is_too_long() -> None:
    assert rollouts(CLOCK, WrittenEngine())(rank_rows(CLOCK, 3, 0), Trainer(3))["env_mask"] is None


LONG = {1: "Say a very long word, such as this: " * 3}


def test_a_too_long_group_has_no_reward_and_no_gradient_not_even_from_the_kl_term(
    tmp_path: Path, tiny_model: Path
) -> None:
    config = write_run(tmp_path, tiny_model, training={"micro_batch_size": 8})
    limit = ("rollout.max_prompt_tokens=40", "objective.beta=10.0")
    server = WrittenServer([1.0, 0.0, 0.5, 0.5], LONG)
    trainer = a_trainer(config, server, *limit)
    move_adapter(trainer.model)  # so that the KL divergence from the start has a gradient
    batch = first_generation(trainer)
    ((_, _, items),) = server.graded

    assert [item.slot for item in items] == [0] * 4
    assert batch["advantages"].tolist() == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert trainer._metrics["train"]["too_long_prompts"] == [0.5]
    assert trainer._metrics["train"]["reward"] == [0.5]
    long_alone = {key: value[4:] if value.dim() else value for key, value in batch.items()}
    assert not gradients(trainer, long_alone).any()
    short_alone = {key: value[:4] if value.dim() else value for key, value in batch.items()}
    assert gradients(trainer, short_alone).norm() > 0.1
    # dr_grpo: the sum over all tokens is divided by the rows, of which there are twice as many with the others.
    assert torch.allclose(gradients(trainer, batch), gradients(trainer, short_alone) / 2, atol=1e-6)


def test_a_run_goes_on_over_prompts_that_are_too_long(a_run: WriteRun) -> None:
    # The prompts say their sentence once, in 15 to 18 tokens, or twice or three times, in more than 20.
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


def test_a_control_token_that_begins_a_turn_ends_a_completion_which_is_not_cut_and_is_graded_without_it(
    a_run: WriteRun,
) -> None:
    # A random model says each of its 384 tokens in one place of 384; 200 completions of up to 50 tokens.
    config = a_run(
        rollout={"max_new_tokens": 50},
        evaluation={"every": 2, "max_new_tokens": 50, "samples": 16},
        training={"max_steps": 2, "learning_rate": 1e-9},
    )
    train_here(config)
    folder = folder_of(config)
    said = [line for file in sorted((folder / "evaluations").iterdir()) for line in lines(file)]
    said += lines(folder / "completions.jsonl")

    assert not any("<|im_start|>" in line["completion"] for line in said)
    assert {line["truncated"] for line in said if line["tokens"] < 50} == {False}
    # Of two tokens that end a completion, 50 places meet one in 1 − (382/384)^50 = 23 % of the cases; of one in 12 %.
    assert 0.16 < fmean(not line["truncated"] for line in said) < 0.32
