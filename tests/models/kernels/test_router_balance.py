import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.errors import ModelError
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.packed_rows import should_pack
from posttrain.models.kernels.packing import row_lengths
from posttrain.models.kernels.router_balance import RouterBalance, router_balance
from tiny_experts import write_tiny_experts

# Two rows with the prompt 3 … 20, and a shorter one; each ends with its last label.
PROMPT = list(range(3, 21))
ROWS = [[*PROMPT, 30, 31, 32], [*PROMPT, 40, 41, 42, 43, 44], [7, 8, 9, 10]]
ANSWERS = [4, 6, 2]
INPUTS = torch.zeros(3, 23, dtype=torch.long)
LABELS = torch.full((3, 23), IGNORED_LABEL)
for number, (row, answer) in enumerate(zip(ROWS, ANSWERS, strict=True)):
    INPUTS[number, : len(row)] = torch.tensor(row)
    LABELS[number, len(row) - answer : len(row)] = torch.arange(50, 50 + answer)
MASK = torch.arange(23) < row_lengths(LABELS).unsqueeze(1)


@pytest.fixture(scope="module", params=["qwen3_moe", "olmoe", "mixtral", "gpt_oss"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return _load(write_tiny_experts(tmp_path_factory.mktemp("experts"), request.param))


def test_the_loss_is_that_of_transformers_over_the_tokens_that_count(model):
    expected = model(input_ids=INPUTS, attention_mask=MASK.long(), output_router_logits=True).aux_loss
    with_padding = model(input_ids=INPUTS, output_router_logits=True).aux_loss
    routers = router_balance(model, None)
    assert routers is not None and routers.coefficient == 0.01
    LabelledHead(model, routers=routers).scores(model, INPUTS, LABELS)
    assert MASK.sum() == 48
    torch.testing.assert_close(routers.take() / 48, expected, rtol=1e-5, atol=0)
    assert abs(with_padding - expected) > 1e-3


def test_packed_rows_have_the_loss_and_gradient_of_padded_ones_and_a_shared_prompt_counts_for_each_row(tmp_path):
    padded = _load(write_tiny_experts(tmp_path))
    packed = copy.deepcopy(padded)
    assert should_pack(True, packed, torch.float32, 64)
    found = [_loss_and_gradients(each, packed=each is packed) for each in (padded, packed)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_recomputed_layers_have_the_same_gradient(tmp_path):
    kept = _load(write_tiny_experts(tmp_path))
    recomputed = copy.deepcopy(kept)
    recomputed.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found = [_loss_and_gradients(each, packed=False) for each in (kept, recomputed)]
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_passes_without_gradient_count_nothing(tmp_path):
    model = _load(write_tiny_experts(tmp_path))
    routers = RouterBalance(model, 0.01)
    head = LabelledHead(model, routers=routers)
    with torch.no_grad():
        head.scores(model, INPUTS, LABELS)
    head.scores(model, INPUTS, LABELS)
    assert routers.take() > 0
    with pytest.raises(RuntimeError):
        routers.take()


def test_a_coefficient_of_0_leaves_it_out_and_a_model_without_experts_has_none(tmp_path, tiny_model):
    assert router_balance(_load(write_tiny_experts(tmp_path)), 0) is None
    assert router_balance(_load(tiny_model), None) is None
    with pytest.raises(ModelError, match="router_loss: models of type llama have no load-balancing loss; set it to 0"):
        router_balance(_load(tiny_model), 0.1)


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()


def _loss_and_gradients(model: Any, *, packed: bool) -> list[torch.Tensor]:
    routers = RouterBalance(model, 0.01)
    losses = LabelledHead(model, packed=packed, routers=routers).token_losses(model, INPUTS, LABELS)
    balance = routers.take()
    (losses.sum() + balance).backward()
    return [losses.sum(), balance, *(weight.grad for weight in model.parameters())]
