"""Log-probabilities are those of the model's softmax at the sampling temperature, before any filters."""

import pytest
import torch
from loaded_model import Loaded

from posttrain.inference.engine import Completion, GenerationRequest, Sampling


@torch.inference_mode()
def by_hand(sharp: Loaded, request: GenerationRequest, completion: Completion, temperature: float) -> list[float]:
    """Log-probabilities from one forward pass over prompt and completion, alone and without padding."""
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids]])
    before = sharp.model(ids).logits[0, len(request.prompt_ids) - 1 : -1]
    logprobs = torch.log_softmax(before / temperature, dim=-1)
    return logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        (Sampling(12, temperature=1.0), 1.0),
        (Sampling(12, temperature=0.6), 0.6),
        (Sampling(12, temperature=1.7), 1.7),
        (Sampling(12, temperature=0.6, top_p=0.7), 0.6),
        (Sampling(12, temperature=1.4, top_k=3), 1.4),
        (Sampling(12, temperature=1.4, min_p=0.3), 1.4),
        (Sampling(12, temperature=0.8, repetition_penalty=1.5), 0.8),
        (Sampling(12, temperature=1.2, top_p=0.9, top_k=9, min_p=0.05, repetition_penalty=0.8), 1.2),
        (Sampling(12), 1.0),
        (Sampling(12, repetition_penalty=1.5), 1.0),
    ],
)
def test_they_equal_those_of_a_direct_forward_pass(sharp, uneven, sampling: Sampling, temperature: float):
    sampling = Sampling(**{**vars(sampling), "logprobs": True})
    for request, completion in zip(uneven, sharp.ask(uneven, sampling), strict=True):
        assert completion.logprobs == pytest.approx(by_hand(sharp, request, completion, temperature), abs=1e-4)


def test_they_are_there_for_each_sample_of_a_prompt_whose_cache_is_shared(sharp: Loaded):
    requests = [GenerationRequest(tuple(range(9, 30)), (1, 2, 3)), GenerationRequest((5, 6, 7), (4, 5, 6))]
    completions = sharp.ask(requests, Sampling(12, temperature=1.3, logprobs=True), batch_size=6)
    assert len({completion.token_ids for completion in completions}) == 6
    for number, completion in enumerate(completions):
        assert completion.logprobs == pytest.approx(by_hand(sharp, requests[number // 3], completion, 1.3), abs=1e-4)


def test_there_is_one_for_each_token_up_to_the_end_token(sharp: Loaded, uneven: list[GenerationRequest]):
    free = sharp.ask(uneven, Sampling(12))
    ends = frozenset(completion.token_ids[3 + row % 4] for row, completion in enumerate(free))
    completions = sharp.ask(uneven, Sampling(12, logprobs=True), end_ids=ends)
    lengths = [len(completion.token_ids) for completion in completions]
    assert [len(completion.logprobs or ()) for completion in completions] == lengths
    assert len(set(lengths)) > 1
    for request, completion in zip(uneven, completions, strict=True):
        assert completion.logprobs == pytest.approx(by_hand(sharp, request, completion, 1.0), abs=1e-4)


def test_without_being_asked_for_there_are_none(sharp: Loaded, uneven: list[GenerationRequest]):
    assert {completion.logprobs for completion in sharp.ask(uneven, Sampling(2))} == {None}
