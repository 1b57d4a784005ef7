"""Completions that are made in segments are those that would have been made at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    derive_seed,
)
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.collect.segments import NOTHING, Segments, parts_of
from posttrain.rl.rollout.rollout import Prompt, Rollout
from posttrain.rl.schedule import RolloutSchedule
from rl.rl_recipes import WrittenServer
from rl.written_rollouts import a_prompt, a_rollout

GROUP, LIMIT = 2, 10
END = 1


class CountingEngine:
    """Continues any text by its length, so that a completion does not depend on how it was divided."""

    def __init__(self, lengths: dict[tuple[int, int], int]) -> None:
        """`lengths`: tokens until the end token, by the prompt's first token and the number of the completion."""
        self._lengths, self.requests = lengths, list[tuple[GenerationRequest, int]]()
        self.number_of: dict[int, int] = {}

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        self.requests += [(request, sampling.max_new_tokens) for request in requests]
        made = {}
        for place, request in enumerate(requests):
            for number, _ in enumerate(request.seeds):
                begun = request.prompt_ids[2:]
                number_of = begun[0] - 1000 if begun else number
                ids = [1000 + number_of, *range(2, LIMIT + 9)]
                length = self._lengths[request.prompt_ids[0], number_of]
                ids = [*ids[: length - 1], END][len(begun) :][: sampling.max_new_tokens]
                ended = ids[-1] == END
                reason = StopReason.END if ended else StopReason.LENGTH
                made[place, number] = Completion(tuple(ids), reason, tuple(-float(each) for each in ids))
        return made


def prompts_of(generation: int) -> list[Prompt]:
    return [
        Prompt(f"{generation}:{slot}", "a", slot, (10 * generation + slot, 7), "", False, iteration=generation)
        for slot in range(2)
    ]


class Tokenizer:
    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return " ".join(map(str, ids))


def segments_of(tokens: int, lengths: dict[tuple[int, int], int]) -> tuple[Segments, CountingEngine]:
    engine: Any = CountingEngine(lengths)
    source: Any = None
    sampling = Sampling(max_new_tokens=LIMIT, temperature=1.0, logprobs=True)
    schedule = RolloutSchedule(2 * GROUP, GROUP)
    collector = Collector(schedule, source, engine, WrittenServer(), Tokenizer(), lambda _: sampling, 0)
    return Segments(collector, tokens, LIMIT), engine


GENERATIONS = 4
LENGTHS = st.fixed_dictionaries(
    {
        (10 * generation + slot, sample): st.integers(1, LIMIT + 3)
        for generation in range(GENERATIONS)
        for slot in range(2)
        for sample in range(GROUP)
    }
)


@given(lengths=LENGTHS, tokens=st.integers(1, LIMIT - 1))
def test_a_group_is_whole_in_the_generation_in_which_its_longest_completion_ends(
    lengths: dict[tuple[int, int], int], tokens: int
) -> None:
    segments, _ = segments_of(tokens, lengths)
    for generation in range(GENERATIONS):
        whole = segments.collect(generation, generation, prompts_of(generation))
        for each in whole:
            length = min(lengths[each.prompt.ids[0], each.sample], LIMIT)
            assert each.tokens == length == len(each.versions) == len(each.mask)
            assert each.was_cut == (lengths[each.prompt.ids[0], each.sample] > LIMIT)
            made_in = each.prompt.iteration + np.arange(length) // tokens
            np.testing.assert_array_equal(each.versions, made_in)  # every token once, by the weights that made it
            assert each.logprobs is not None
            np.testing.assert_array_equal(each.logprobs, -each.ids.astype(np.float32))
        there = [
            (began, slot)
            for began in range(GENERATIONS)
            for slot in range(2)
            if began + (max(min(lengths[10 * began + slot, n], LIMIT) for n in range(GROUP)) - 1) // tokens
            == generation
        ]
        assert [(each.prompt.iteration, each.prompt.slot) for each in whole[::GROUP]] == there


@given(lengths=LENGTHS, tokens=st.integers(1, LIMIT - 1), at=st.integers(0, GENERATIONS - 1))
def test_what_is_carried_over_can_be_taken_up_by_another_process(
    lengths: dict[tuple[int, int], int], tokens: int, at: int
) -> None:
    (one, _), (other, _) = segments_of(tokens, lengths), segments_of(tokens, lengths)
    for generation in range(GENERATIONS):
        left = one.collect(generation, 0, prompts_of(generation))
        if generation > at:
            assert _described(other.collect(generation, 0, prompts_of(generation))) == _described(left)
        if generation == at:
            other.restore(at, one.carried_after(at))


def _described(rollouts: Sequence[Rollout]) -> list[tuple[str, int, str]]:
    return [(each.prompt.sample_id, each.sample, each.text) for each in rollouts]


def test_each_segment_has_a_seed_of_its_own_and_the_first_that_of_a_whole_completion() -> None:
    lengths = {(slot, sample): 3 for slot in range(20) for sample in range(GROUP)}
    segments, engine = segments_of(2, lengths)
    segments.collect(0, 0, prompts_of(0))
    assert [request.seeds for request, _ in engine.requests] == [
        (derive_seed(0, 0, slot, 0), derive_seed(0, 0, slot, 1)) for slot in range(2)
    ]
    engine.requests.clear()
    segments.collect(1, 1, prompts_of(1))
    carried = [request for request, _ in engine.requests if len(request.prompt_ids) > 2]
    assert [request.prompt_ids for request in carried] == [
        (slot, 7, 1000 + sample, 2) for slot in range(2) for sample in range(GROUP)
    ]
    assert [request.seeds for request in carried] == [
        (derive_seed(0, 0, slot, sample, 1),) for slot in range(2) for sample in range(GROUP)
    ]


def test_the_last_segment_is_as_long_as_the_limit_allows() -> None:
    lengths = {(slot, sample): LIMIT + 1 for slot in range(40) for sample in range(GROUP)}
    segments, engine = segments_of(4, lengths)
    for generation in range(3):
        engine.requests.clear()
        whole = segments.collect(generation, 0, prompts_of(generation))
    assert {limit for request, limit in engine.requests if len(request.prompt_ids) == 2 + 8} == {2}
    assert [each.tokens for each in whole] == [LIMIT] * 2 * GROUP


def test_a_prompt_that_is_too_long_is_whole_at_once() -> None:
    segments, _ = segments_of(2, {})
    prompt = a_prompt(0, is_too_long=True)
    assert not segments._is_unfinished(segments._begun(prompt, 0))


def test_parts_are_filled_up_with_rollouts_that_do_not_count() -> None:
    made = [a_rollout(a_prompt(slot), sample, [5]) for slot in range(3) for sample in range(2)]
    numbers = {id(each): number for number, each in enumerate(made)} | {id(NOTHING): -1}
    found = [numbers[id(each)] for each in parts_of(made, parts=2, group=2, multiple=1)]
    assert found == [0, 1, -1, -1, 2, 3, 4, 5]
    assert parts_of([], parts=2, group=2, multiple=3) == [NOTHING] * 12
    assert parts_of(made[:4], parts=1, group=2, multiple=2) == made[:4]
    assert NOTHING.is_left_out
