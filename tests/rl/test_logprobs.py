"""Log-probabilities and entropies match the plain formula, and padding is not computed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from trl.trainer.utils import selective_log_softmax_and_entropy

from posttrain.models.kernels.compiled_layers import compile_layers
from posttrain.models.kernels.packed_rows import should_pack
from posttrain.rl.generation import CompletionBatch, CompletionScorer
from posttrain.rl.rollout.rollout import Rollout
from rl.written_rollouts import a_prompt, a_rollout

CPU = torch.device("cpu")
# Prompts of 3, 1 and 5 tokens with completions of 2, 4 and 1, each sampled at a different temperature.
ROLLOUTS = [
    a_rollout(a_prompt(0, [5, 6, 7]), 0, [20, 21], temperature=1.0),
    a_rollout(a_prompt(1, [8]), 0, [22, 23, 24, 25], temperature=0.7),
    a_rollout(a_prompt(2, [9, 10, 11, 12, 13]), 0, [26], temperature=1.3),
]


@pytest.fixture
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def plainly(model: Any, rollouts: list[Rollout]) -> tuple[torch.Tensor, torch.Tensor]:
    """TRL's formula on one completion at a time, without padding; the results are padded with 0."""
    longest = max(each.tokens for each in rollouts)
    logprobs, entropies = torch.zeros(len(rollouts), longest), torch.zeros(len(rollouts), longest)
    for row, each in enumerate(rollouts):
        ids = torch.tensor([*each.prompt.ids, *each.ids])
        logits = model(input_ids=ids[None], use_cache=False).logits[:, len(each.prompt.ids) - 1 : -1]
        found = selective_log_softmax_and_entropy(
            logits, torch.from_numpy(each.ids)[None], temperature=each.temperature, row_mask=torch.ones(1, each.tokens)
        )
        logprobs[row, : each.tokens], entropies[row, : each.tokens] = (part.squeeze(0) for part in found)
    return logprobs, entropies


def gradients(model: Any, logprobs: torch.Tensor) -> list[torch.Tensor]:
    weights = torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(0))
    model.zero_grad()
    (logprobs * weights).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("temperatures", [(1.0, 1.0, 1.0), (0.5, 0.5, 0.5), (1.0, 0.7, 1.3)])
def test_values_and_gradients_are_those_of_the_plain_formula(
    model: Any, temperatures: tuple[float, ...], packed: bool
) -> None:
    assert should_pack(packed, model, torch.float32, 64) is packed
    rollouts = [replace(each, temperature=t) for each, t in zip(ROLLOUTS, temperatures, strict=True)]
    wanted, wanted_entropies = plainly(model, rollouts)
    wanted_gradients = gradients(model, wanted)

    found, entropies = CompletionScorer(model, 3, packed=packed)(model, CompletionBatch.of(rollouts, 0, CPU))

    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(entropies, wanted_entropies, atol=1e-5)
    assert not entropies.requires_grad
    for one, other in zip(gradients(model, found), wanted_gradients, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_completions_of_one_prompt_share_its_computation_and_change_no_number(model: Any) -> None:
    prompt = a_prompt(0, range(5, 85))
    rollouts = [a_rollout(prompt, sample, [20 + sample, 30, 31][: sample + 1]) for sample in range(3)]
    wanted, _ = plainly(model, rollouts)
    seen = []
    layer = model.model.layers[0].mlp
    scorer = CompletionScorer(model, 3, packed=should_pack(True, model, torch.float32, 128))
    handle = layer.register_forward_hook(lambda module, given, made: seen.append(made.shape[:-1].numel()))

    found, _ = scorer(model, CompletionBatch.of(rollouts, 0, CPU))
    handle.remove()

    assert torch.allclose(found, wanted, atol=1e-5)
    # The prompt's 80 tokens once, plus the completions' tokens: far fewer than 3 times 80.
    assert sum(seen) < 100


def test_only_the_tokens_of_completions_go_through_the_head(model: Any) -> None:
    scorer, seen = CompletionScorer(model, 3), []
    handle = model.get_output_embeddings().register_forward_hook(lambda layer, given, made: seen.append(made.shape))

    scorer(model, CompletionBatch.of(ROLLOUTS, 0, CPU))
    handle.remove()

    assert sum(shape[:-1].numel() for shape in seen) == sum(each.tokens for each in ROLLOUTS)


def test_a_prompt_that_is_too_long_stands_there_as_one_token(model: Any) -> None:
    too_long = a_rollout(a_prompt(0, range(100), is_too_long=True), 0, [])
    batch = CompletionBatch.of([too_long, ROLLOUTS[0]], 0, CPU)

    found, _ = CompletionScorer(model, 2)(model, batch)

    assert batch.input_ids.shape == (2, 4)
    assert found.shape == (2, 2)
    assert torch.allclose(found[1], plainly(model, ROLLOUTS[:1])[0][0], atol=1e-5)


@pytest.mark.long
def test_one_row_of_a_batch_does_not_compile_the_layers_once_more(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    compile_layers(model, 3, torch.float32)
    scorer = CompletionScorer(model, 3)
    batch = CompletionBatch.of([replace(ROLLOUTS[0], sample=n) for n in range(3)], 0, CPU)
    scorer(model, batch)

    with torch.compiler.set_stance("fail_on_recompile"):
        two, _ = scorer(model, rows(batch, 2))
        one, _ = scorer(model, rows(batch, 1))

    assert torch.allclose(one, two[:1], atol=1e-5)


def rows(batch: CompletionBatch, count: int) -> CompletionBatch:
    """The first `count` rows of a batch whose rows have equal length."""
    return CompletionBatch(batch.input_ids[:count], batch.labels[:count], batch.present[:count], None)
