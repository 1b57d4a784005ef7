"""Tokens that are told while they are generated are those of the completions, and a listener can end a completion."""

from collections.abc import Sequence
from typing import Any

import pytest
from loaded_model import NEVER, Loaded

from posttrain.inference.engine import (
    Completion,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    StreamingEngine,
    decode,
    heard,
    without_end,
)
from posttrain.inference.hf.engine import HfEngine

Told = dict[Key, list[int]]


def stream(
    sharp: Loaded,
    requests: list[GenerationRequest],
    sampling: Sampling,
    end_ids: frozenset[int] = NEVER,
    most: dict[Key, int] | None = None,
    batch_size: int = 3,
) -> tuple[Told, dict[Key, Completion]]:
    """What was told of each completion, and the completions; `most` says after how many tokens one is ended."""
    told: Told = {}

    def hear(key: Key, tokens: Sequence[int]) -> bool:
        told.setdefault(key, []).extend(tokens)
        return len(told[key]) < (most or {}).get(key, 1000)

    engine = HfEngine(sharp.model, sharp.tokenizer, end_ids, batch_size)
    assert isinstance(engine, StreamingEngine)
    return told, dict(engine.stream(requests, sampling, hear))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_completions_are_those_of_generate_and_each_token_is_told_once(
    sharp: Loaded, uneven: list[GenerationRequest], temperature: float
):
    sampling = Sampling(8, temperature=temperature, logprobs=True)
    ends = frozenset({sharp.ask(uneven, sampling, batch_size=3)[2].token_ids[4]})
    told, streamed = stream(sharp, uneven, sampling, ends)
    generated = dict(HfEngine(sharp.model, sharp.tokenizer, ends, 3).generate(uneven, sampling))
    assert streamed == generated
    assert {reason for _, reason in [(key, each.stop_reason) for key, each in streamed.items()]} == {
        StopReason.END,
        StopReason.LENGTH,
    }
    assert {key: tuple(tokens) for key, tokens in told.items()} == {
        key: without_end(each) for key, each in generated.items() if without_end(each)
    }


def test_tokens_are_told_while_others_are_still_to_come(sharp: Loaded, uneven: list[GenerationRequest]):
    """The first tokens of three completions that are generated together come before any second one."""
    order: list[Key] = []
    engine = HfEngine(sharp.model, sharp.tokenizer, NEVER, 3)
    list(engine.stream(uneven[:3], Sampling(2), lambda key, tokens: order.append(key) is None))
    assert sorted(order[:3]) == sorted(order[3:]) == [(0, 0), (1, 0), (2, 0)]


def test_a_completion_that_is_no_longer_wanted_ends_and_the_others_stay_the_same(
    sharp: Loaded, uneven: list[GenerationRequest]
):
    free = sharp.ask(uneven[:3], Sampling(8), batch_size=3)
    told, streamed = stream(sharp, uneven[:3], Sampling(8), most={(1, 0): 3})
    assert (streamed[1, 0].token_ids, streamed[1, 0].stop_reason) == (free[1].token_ids[:3], StopReason.CUT)
    assert told[1, 0] == list(free[1].token_ids[:3])
    assert [streamed[0, 0], streamed[2, 0]] == [free[0], free[2]]


def test_a_batch_of_which_nothing_is_wanted_ends_at_once(sharp: Loaded, uneven: list[GenerationRequest]):
    steps = 0

    def count(module: object, arguments: object, inputs: dict[str, Any], output: object) -> None:
        nonlocal steps
        steps += inputs["input_ids"].shape == (3, 1)

    hook = sharp.model.register_forward_hook(count, with_kwargs=True)
    _, streamed = stream(sharp, uneven[:3], Sampling(100), most={(row, 0): 2 for row in range(3)})
    hook.remove()
    assert [len(each.token_ids) for each in streamed.values()] == [2, 2, 2]
    assert steps == 2


def test_the_token_that_completes_a_stop_string_is_told_and_is_the_last(sharp: Loaded, uneven: list[GenerationRequest]):
    ids = sharp.ask(uneven[:1], Sampling(8))[0].token_ids
    string = decode(sharp.tokenizer, ids[3:4])
    told, streamed = stream(sharp, uneven[:1], Sampling(8, stop=(string,)))
    assert streamed[0, 0].stop_reason is StopReason.STOP
    assert told[0, 0] == list(streamed[0, 0].token_ids)


def test_an_engine_that_does_not_stream_tells_a_completion_at_once(sharp: Loaded, uneven: list[GenerationRequest]):
    class InOnePiece:
        """All of an engine but `stream`."""

        def __init__(self, engine: HfEngine) -> None:
            self.generate, self.complete, self.score = engine.generate, engine.complete, engine.score
            self.token_logprobs, self.close = engine.token_logprobs, engine.close

    free = sharp.ask(uneven[:2], Sampling(5))
    told: list[tuple[Key, Sequence[int]]] = []
    engine = InOnePiece(HfEngine(sharp.model, sharp.tokenizer, frozenset({free[1].token_ids[4]}), 2))
    made = dict(heard(engine, uneven[:2], Sampling(5), lambda *heard: told.append(heard) is None))
    assert dict(told)[1, 0] == free[1].token_ids[: free[1].token_ids.index(free[1].token_ids[4])]
    assert made[1, 0].stop_reason is StopReason.END
