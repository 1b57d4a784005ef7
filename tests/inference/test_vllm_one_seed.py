"""On a CPU, all completions of a call can share one seed, which is faster and repeats as exactly."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from loaded_model import NEVER, Loaded

from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from vllm_model import write_vllm_model

SAMPLED = Sampling(20, temperature=1.0, logprobs=True)
# Longer than vLLM's 128-token cache blocks, and more than it starts at once.
REQUESTS = [
    GenerationRequest(tuple(5 + (7 * row + at) % 370 for at in range(300)), (row, 90 + row)) for row in range(9)
]


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vllm_model(tiny_model, tmp_path_factory.mktemp("vllm"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[VllmEngine]:
    engine = VllmEngine(folder, NEVER, VllmOptions("float32", max_length=512, eager=True, seed_each=False))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def first(engine: VllmEngine) -> dict[Key, Completion]:
    return dict(engine.generate(REQUESTS, SAMPLED))


def said(completions: Iterable[tuple[Key, Completion]]) -> dict[Key, tuple[int, ...]]:
    """The tokens only: the last digits of log-probabilities also depend on memory layout."""
    return {key: completion.token_ids for key, completion in completions}


def test_the_same_call_gives_the_same_samples_whatever_came_in_between(engine: VllmEngine, first, uneven):
    samples = said(first.items())
    assert len(set(samples.values())) == 18
    assert said(engine.generate(REQUESTS, SAMPLED)) == samples
    others = said(engine.generate(uneven, Sampling(7, temperature=1.0)))
    assert said(engine.generate(REQUESTS, SAMPLED)) == samples
    assert said(engine.generate(uneven, Sampling(7, temperature=1.0))) == others


def test_any_other_seed_changes_the_samples(engine: VllmEngine, first):
    changed = said(engine.generate([*REQUESTS[:-1], GenerationRequest(REQUESTS[-1].prompt_ids, (8, 99))], SAMPLED))
    assert [key for key, ids in changed.items() if ids == first[key].token_ids] == []


def test_what_is_done_is_left_out_and_changes_none_of_the_others(engine: VllmEngine, first):
    done = {(0, 1), (3, 0), (3, 1), (8, 0)}
    rest = said(engine.generate(REQUESTS, SAMPLED, done=done))
    assert rest == {key: ids for key, ids in said(first.items()).items() if key not in done}
    assert list(engine.generate(REQUESTS, SAMPLED, done=set(first))) == []


def test_random_numbers_drawn_in_between_neither_change_the_samples_nor_are_changed(engine: VllmEngine, first):
    torch.manual_seed(5)
    expected = [torch.rand(1).item() for _ in range(18)]
    torch.manual_seed(5)
    drawn, found = [], []
    for pair in engine.generate(REQUESTS, SAMPLED):
        drawn.append(torch.rand(1).item())
        found.append(pair)
    assert (said(found), drawn) == (said(first.items()), expected)


def test_log_probabilities_are_those_of_a_forward_pass(first, folder: Path, load: Callable[..., Loaded]):
    model = load(folder).model
    with torch.inference_mode():
        for (position, _), completion in first.items():
            prompt = REQUESTS[position].prompt_ids
            ids = torch.tensor([[*prompt, *completion.token_ids]])
            logprobs = torch.log_softmax(model(ids).logits[0, len(prompt) - 1 : -1], dim=-1)
            chosen = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0]
            assert completion.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)
