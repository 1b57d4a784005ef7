"""Our log-probabilities are TRL's, and so is the gradient; only the padding is not computed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from trl.trainer.utils import selective_log_softmax_and_entropy

from posttrain.models.kernels.compiled_layers import compile_layers
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.shared_prompts import SharedPrompts
from posttrain.rl.logprobs import CompletionLogprobs

PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13]]
COMPLETIONS = [[20, 21], [22, 23, 24, 25], [26]]
LONGEST = 4


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts padded on the left, completions on the right, as TRL has them; 2 columns of padding more."""
    width = max(map(len, PROMPTS)) + 2
    left = [[0] * (width - len(ids)) + ids for ids in PROMPTS]
    right = pad_sequence([torch.tensor(ids) for ids in COMPLETIONS], batch_first=True)
    ids = torch.cat([torch.tensor(left), right], dim=1)
    return ids, (ids != 0).long()


def by_trl(model: Any, ids: torch.Tensor, mask: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula of TRL's GRPOTrainer._full_logits_logps, with the positions that a batch without padding has."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
    logits = logits[:, :-1][:, -LONGEST:]
    return selective_log_softmax_and_entropy(
        logits, ids[:, -LONGEST:], temperature=temperature, row_mask=mask[:, -LONGEST:]
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_values_and_gradients_are_those_of_trl(model: Any, temperature: float, rows: int) -> None:
    ids, mask = batch()
    weights = torch.randn(len(PROMPTS), LONGEST, generator=torch.Generator().manual_seed(0))
    wanted, wanted_entropies = by_trl(model, ids, mask, temperature)
    (wanted * weights).sum().backward()
    wanted_gradients = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    head = LabelledHead(model)
    ours = CompletionLogprobs(SharedPrompts(head, model), temperature)

    found, entropies = ours.compute(model, ids, mask, LONGEST, rows)
    (found * weights).sum().backward()
    head.detach()

    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(entropies, wanted_entropies, atol=1e-5)
    assert not entropies.requires_grad
    for parameter, gradient in zip(model.parameters(), wanted_gradients, strict=True):
        assert torch.allclose(parameter.grad, gradient, atol=1e-4)
    model.zero_grad()


def test_the_place_of_padding_holds_zero(model: Any) -> None:
    ids, mask = batch()
    head = LabelledHead(model)

    found, entropies = CompletionLogprobs(SharedPrompts(head, model), 1.0).compute(model, ids, mask, LONGEST, 3)
    head.detach()

    padding = mask[:, -LONGEST:] == 0
    assert padding.sum() == 5
    assert not found[padding].any() and not entropies[padding].any()


def test_only_the_tokens_of_completions_go_through_the_head(model: Any) -> None:
    ids, mask = batch()
    head, seen = LabelledHead(model), []
    prompts = SharedPrompts(head, model)
    handle = model.get_output_embeddings().register_forward_hook(lambda layer, given, made: seen.append(made.shape))

    CompletionLogprobs(prompts, 1.0).compute(model, ids, mask, LONGEST, 3)
    head.detach()
    handle.remove()

    assert [shape[0] for shape in seen] == [sum(map(len, COMPLETIONS))]


def test_one_row_of_a_batch_does_not_compile_the_layers_once_more(tiny_model: Path) -> None:
    ids, mask = batch()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    ours = CompletionLogprobs(SharedPrompts(LabelledHead(model), model), 1.0)
    compile_layers(model, 3, torch.float32)
    ours.compute(model, ids, mask, LONGEST, 3)

    with torch.compiler.set_stance("fail_on_recompile"):
        two, _ = ours.compute(model, ids[:2], mask[:2], LONGEST, 3)
        one, _ = ours.compute(model, ids[:1], mask[:1], LONGEST, 3)

    assert torch.allclose(one, two[:1], atol=1e-5)
