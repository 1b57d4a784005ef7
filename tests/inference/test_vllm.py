"""vLLM answers like transformers and follows the engine protocol: seeds, ends, limits and log-probabilities."""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loaded_model import NEVER, Loaded

from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.masks import TokenRow
from posttrain.errors import ConfigError, ModelError
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    Sampling,
    StopReason,
    decode,
)
from posttrain.inference.hf.engine import HfEngine
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from posttrain.models.hf import HfBackend
from vllm_model import write_vllm_model

ENDING = GenerationRequest((200, 201, 202, 203))


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("vllm"))


@dataclass
class Started:
    """An engine, and the process state before and after it started."""

    engine: VllmEngine
    before: list[Any]
    after: list[Any]


def process_state() -> list[Any]:
    random_numbers = [random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()]
    return [*random_numbers, torch.get_num_threads(), torch.set_num_threads, os.environ.get("LD_PRELOAD")]


@pytest.fixture(scope="module")
def ends(hf: Loaded) -> frozenset[int]:
    """End tokens: the fourth token of one greedy answer, which no other test produces, and `NEVER`."""
    return frozenset({hf.ask([ENDING], Sampling(4))[0].token_ids[3]}) | NEVER


@pytest.fixture(scope="module")
def started(folder: Path, ends: frozenset[int]) -> Iterator[Started]:
    before = process_state()
    engine = VllmEngine(folder, ends, VllmOptions("float32", max_length=512, eager=True))
    yield Started(engine, before, process_state())
    engine.close()
    engine.close()
    assert not torch.distributed.is_initialized()


@pytest.fixture
def engine(started: Started) -> VllmEngine:
    return started.engine


@pytest.fixture(scope="module")
def hf(folder: Path) -> Loaded:
    config = ModelConfig(name=str(folder), backend="hf", dtype="float32")
    loaded = HfBackend().load_for_inference(config, None, chatml=True)
    return Loaded(loaded.model, loaded.tokenizer)


def ask(engine: VllmEngine, requests: list[GenerationRequest], sampling: Sampling) -> list[Completion]:
    """All completions, ordered by request and sample."""
    found = dict(engine.generate(requests, sampling))
    return [found[key] for key in sorted(found)]


def ids_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in completions]


def readable(hf: Loaded) -> list[GenerationRequest]:
    """Four prompts whose answers are plain text."""
    choose = random.Random(0)
    requests = [GenerationRequest(tuple(choose.choices(range(3, 380), k=12))) for _ in range(2000)]
    completions = hf.ask(requests, Sampling(8), batch_size=2000)
    plain = [
        request
        for request, completion in zip(requests, completions, strict=True)
        if decode(hf.tokenizer, completion.token_ids).isascii() and max(completion.token_ids) < 380
    ]
    return plain[:4]


def test_starting_vllm_leaves_the_process_as_it_was(started: Started):
    assert started.after == started.before


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_greedy_answers_are_those_of_transformers_token_for_token(engine, hf: Loaded, ends, uneven, penalty: float):
    sampling = Sampling(40, repetition_penalty=penalty)
    answers = ask(engine, uneven, sampling)
    assert answers == hf.ask(uneven, sampling, end_ids=ends)
    assert len(set(ids_of(answers))) == 8


def test_the_same_seeds_give_the_same_samples_and_others_others(engine: VllmEngine, uneven):
    sampling = Sampling(20, temperature=1.0)
    assert ask(engine, uneven, sampling) == ask(engine, uneven, sampling)
    reseeded = [GenerationRequest(request.prompt_ids, (100 + row,)) for row, request in enumerate(uneven)]
    assert not set(ids_of(ask(engine, uneven, sampling))) & set(ids_of(ask(engine, reseeded, sampling)))


def test_a_sample_depends_on_its_own_seed_and_not_on_its_neighbours(engine: VllmEngine):
    sampling = Sampling(20, temperature=1.0)
    together = ask(engine, [GenerationRequest(tuple(range(9, 20)), (11, 12, 13, 14, 15))], sampling)
    assert len(set(ids_of(together))) == 5
    assert ask(engine, [GenerationRequest(tuple(range(9, 20)), (13,))], sampling) == [together[2]]


@pytest.mark.parametrize(
    "filtered", [Sampling(20, 1.5, top_k=1), Sampling(20, 1.5, top_p=1e-6), Sampling(20, 1.5, min_p=0.999999)]
)
def test_the_strictest_filters_leave_only_the_likeliest_token(engine: VllmEngine, uneven, filtered: Sampling):
    assert ids_of(ask(engine, uneven, filtered)) == ids_of(ask(engine, uneven, Sampling(20)))


def test_what_is_done_is_left_out_and_changes_none_of_the_others(engine: VllmEngine, uneven):
    requests = [GenerationRequest(request.prompt_ids, (row, 50 + row)) for row, request in enumerate(uneven)]
    sampling = Sampling(20, temperature=1.0)
    everything = dict(engine.generate(requests, sampling))
    assert sorted(everything) == [(row, sample) for row in range(8) for sample in range(2)]
    done = {(0, 1), (3, 0), (3, 1), (7, 0)}
    rest = dict(engine.generate(requests, sampling, done=done))
    assert rest == {key: completion for key, completion in everything.items() if key not in done}
    assert list(engine.generate(requests, sampling, done=set(everything))) == []
    finished = FinishedCompletions()
    finished.extend(requests, [(key, everything[key]) for key in done])
    heard: list[Key] = []
    finished.heard = lambda key, completion: heard.append(key)
    assert engine.complete(requests, sampling, finished) == everything
    assert set(heard) == everything.keys() - done


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.7])
@torch.inference_mode()
def test_log_probabilities_are_those_of_a_forward_pass_at_the_sampling_temperature(
    engine, hf: Loaded, uneven, temperature: float
):
    sampling = Sampling(12, temperature=temperature, logprobs=True)
    for request, completion in zip(uneven, ask(engine, uneven, sampling), strict=True):
        ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
        logits = hf.model(ids).logits[0, len(request.prompt_ids) - 1 : -1] / (temperature or 1.0)
        chosen = torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(request.prompt_ids) :, None])[:, 0]
        assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)


@pytest.mark.parametrize(
    "filtered",
    [
        Sampling(5, 1.0, top_p=0.9, logprobs=True),
        Sampling(5, 1.0, top_k=9, logprobs=True),
        Sampling(5, 1.0, min_p=0.1, logprobs=True),
        Sampling(5, repetition_penalty=1.1, logprobs=True),
    ],
)
def test_log_probabilities_that_would_be_those_after_a_filter_are_refused(engine, uneven, filtered: Sampling):
    with pytest.raises(ConfigError, match="the model's own"):
        engine.generate(uneven, filtered)


def test_greedy_decoding_with_filters_that_do_nothing_there_has_log_probabilities(engine: VllmEngine, uneven):
    filtered = ask(engine, uneven, Sampling(5, top_p=0.5, top_k=3, logprobs=True))
    assert filtered == ask(engine, uneven, Sampling(5, logprobs=True))


def test_an_answer_ends_with_the_first_end_token_and_keeps_it(engine: VllmEngine, hf: Loaded, ends: frozenset[int]):
    [free] = hf.ask([ENDING], Sampling(8))
    for limit, reason in ((3, StopReason.LENGTH), (4, StopReason.END), (8, StopReason.END)):
        [answer] = ask(engine, [ENDING], Sampling(limit, logprobs=True))
        assert (answer.token_ids, answer.stop_reason) == (free.token_ids[: min(limit, 4)], reason)
        assert len(answer.logprobs or ()) == min(limit, 4)


def test_an_end_token_of_the_tokenizer_that_is_not_named_ends_nothing(engine: VllmEngine, ends: frozenset[int]):
    # At this temperature the tokens are so evenly likely that each should appear a few times.
    request = GenerationRequest(tuple(range(9, 20)), tuple(range(100)))
    answers = ask(engine, [request], Sampling(60, temperature=2.0))
    assert {2, *ends} <= {token for answer in answers for token in answer.token_ids}
    for answer in answers:
        assert ends.isdisjoint(answer.token_ids[:-1])
        assert (answer.stop_reason is StopReason.END) == (answer.token_ids[-1] in ends)
        assert answer.stop_reason is StopReason.END or len(answer.token_ids) == 60


def test_stop_strings_end_an_answer_where_transformers_would(engine: VllmEngine, hf: Loaded, ends):
    requests = readable(hf)
    texts = [decode(hf.tokenizer, completion.token_ids) for completion in hf.ask(requests, Sampling(8))]
    # Three letters that begin and end inside tokens, for each answer but the last, and a string in none of them.
    stop = (*(text[at : at + 3] for at, text in enumerate(texts[:3], start=3)), "never said")
    answers = ask(engine, requests, Sampling(8, stop=stop, logprobs=True))
    expected = hf.ask(requests, Sampling(8, stop=stop, logprobs=True), end_ids=ends)
    assert [(answer.token_ids, answer.stop_reason) for answer in answers] == [
        (completion.token_ids, completion.stop_reason) for completion in expected
    ]
    assert [answer.stop_reason for answer in answers] == [StopReason.STOP] * 3 + [StopReason.LENGTH]
    assert [len(answer.logprobs or ()) for answer in answers] == [len(answer.token_ids) for answer in answers]


def test_what_the_prompt_says_stops_nothing_not_even_together_with_the_answer(engine: VllmEngine, hf: Loaded):
    request = GenerationRequest(tuple(range(70, 90)))
    [free] = ask(engine, [request], Sampling(12))
    prompt, text = decode(hf.tokenizer, request.prompt_ids), decode(hf.tokenizer, free.token_ids)
    stop = (prompt[-3:], prompt[-1] + text[0])
    assert not any(string in text for string in stop)
    assert ask(engine, [request], Sampling(12, stop=stop)) == [free]


def test_what_cannot_fit_is_refused_before_anything_is_generated(engine: VllmEngine):
    requests = [GenerationRequest((5,)), GenerationRequest(tuple(range(100)))]
    assert len(ask(engine, requests, Sampling(412))) == 2
    with pytest.raises(ConfigError, match="100 tokens plus 413 new tokens exceeds the engine's max_length of 512"):
        engine.generate(requests, Sampling(413))


def test_a_temperature_that_vllm_does_not_take_is_refused(engine: VllmEngine, uneven):
    with pytest.raises(ConfigError, match=r"temperature must be in \[0, 2\]"):
        engine.generate(uneven, Sampling(5, temperature=2.1))


def test_an_iteration_that_is_given_up_leaves_the_engine_ready(engine: VllmEngine, uneven):
    before = ask(engine, uneven, Sampling(20))
    iterator = engine.generate([*uneven, ENDING], Sampling(20))
    first, _ = next(iterator)
    assert first == (8, 0)
    with pytest.raises(RuntimeError, match="still generating"):
        engine.generate(uneven, Sampling(20))
    iterator.close()
    assert ask(engine, uneven, Sampling(20)) == before


def test_an_engine_without_room_for_adapters_takes_none(engine: VllmEngine, tmp_path: Path):
    with pytest.raises(ConfigError, match="adapter_rank"):
        engine.use_adapter(tmp_path)


@pytest.mark.parametrize(
    ("eager", "compiler", "compiles"),
    [(None, "sh", True), (False, "sh", True), (True, "sh", False), (None, "no", False)],
)
def test_what_needs_a_cpp_compiler_is_compiled_where_there_is_one(monkeypatch, eager, compiler: str, compiles: bool):
    monkeypatch.setenv("CXX", compiler)
    assert VllmOptions("float32", max_length=512, eager=eager).compiles is compiles


def test_options_that_cannot_be_are_refused(folder: Path):
    with pytest.raises(ConfigError, match="up to rank 512, but this one has rank 513"):
        VllmEngine(folder, NEVER, VllmOptions("float32", max_length=512, adapter_rank=513, eager=True))
    with pytest.raises(ModelError, match="max_model_len"):
        VllmEngine(folder, NEVER, VllmOptions("float32", max_length=513, eager=True))


def test_more_prompts_than_are_processed_at_once_are_completed(engine: VllmEngine):
    prompts = [tuple(range(5 + number, 305 + number)) for number in range(50)]  # 15,000 tokens
    requests = [GenerationRequest(prompt, (number,)) for number, prompt in enumerate(prompts)]
    found = ask(engine, requests, Sampling(2, temperature=1.0))
    assert [len(completion.token_ids) for completion in found] == [2] * 50


def test_log_probabilities_of_given_tokens_are_those_of_transformers(engine: VllmEngine, hf: Loaded):
    rows = [TokenRow(list(range(5, 5 + length)), [token % 2 == 0 for token in range(length)]) for length in (3, 9, 200)]
    by_transformers = dict(HfEngine(hf.model, hf.tokenizer, NEVER, 4).token_logprobs(rows))
    for number, logprobs in engine.token_logprobs(rows):
        assert logprobs == pytest.approx(by_transformers.pop(number), abs=1e-3)
    assert not by_transformers
