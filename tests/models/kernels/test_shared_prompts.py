"""A prompt shared by several rows is computed once, and the results do not change."""

import pytest
import torch
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from posttrain.config.sections.model import LoraConfig
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.kernels.shared_prompts import SharedPrompts
from posttrain.models.lora import add_adapter

LONG, OTHER = list(range(10, 90)), list(range(100, 190))
SHORT = [5, 6, 7]
# Three answers to a prompt of 80 tokens, one to a prompt of 90, and to a prompt of 3 tokens two and an empty one.
ROWS = [
    (LONG, [200, 201]),
    (LONG, [202, 203, 204, 205]),
    (LONG, [206]),
    (OTHER, [207, 208, 209]),
    (SHORT, [210, 211]),
    (SHORT, [212]),
    (SHORT, []),
]


def batch(rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels, padded on the right: position t predicts token t + 1."""
    width = max(len(prompt) + len(answer) for prompt, answer in rows) - 1
    inputs = torch.zeros((len(rows), width), dtype=torch.long)
    labels = torch.full((len(rows), width), IGNORED_LABEL)
    for row, (prompt, answer) in enumerate(rows):
        ids = torch.tensor([*prompt, *answer])
        inputs[row, : len(ids) - 1] = ids[:-1]
        labels[row, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
    return inputs, labels


@pytest.fixture
def model(tiny_model):
    adapted = add_adapter(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=4), (), seed=0).train()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    return adapted


def scores_and_gradients(model, ask, rows):
    model.zero_grad()
    inputs, labels = batch(rows)
    temperatures = torch.linspace(0.7, 1.2, int((labels != IGNORED_LABEL).sum()))
    chosen, entropies = ask(model, inputs, labels, temperatures=temperatures, entropies=True)
    factors = torch.linspace(-1, 2, len(chosen))
    (chosen * factors).sum().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return chosen.detach(), entropies, gradients


def widths_of(model, ask, rows) -> list[tuple[int, int]]:
    """Rows and tokens of every forward pass in a call."""
    seen = []
    handle = model.get_input_embeddings().register_forward_hook(
        lambda _, given, made: seen.append(tuple(given[0].shape))
    )
    inputs, labels = batch(rows)
    ask(model, inputs, labels)
    handle.remove()
    return seen


GROUPS = [
    [row for row in ROWS if row[0] != OTHER],
    [*ROWS[:3], (OTHER, [207]), (OTHER, [208, 209, 210])],
    [(LONG, list(range(200, 230))), (LONG, [1, 2]), (SHORT, list(range(230, 260))), (LONG, [3]), (LONG, [])],
]


@pytest.mark.parametrize("rows", GROUPS)
def test_log_probabilities_entropies_and_gradients_are_those_of_whole_rows(model, rows):
    head = LabelledHead(model)
    expected, spread, gradients = scores_and_gradients(model, head.scores, rows)
    shared = SharedPrompts(head, model).scores
    found, entropies, shared_gradients = scores_and_gradients(model, shared, rows)
    assert widths_of(model, shared, rows) != widths_of(model, head.scores, rows)
    assert found.shape == (sum(len(answer) for _, answer in rows),)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropies, spread, rtol=1e-5, atol=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(shared_gradients[name], gradient, rtol=1e-3, atol=1e-5)


def test_a_long_prompt_is_computed_once_and_each_answer_from_its_last_token_on(model):
    # Three rows of 92 tokens share a prompt of 90. Its first 89 tokens are cut into pieces as wide as the longest
    # remainder: the prompt's last token and 2 of 3 answer tokens. That makes 30 pieces of 3 tokens, plus 3 rows.
    rows = [(OTHER, [200, 201]), (OTHER, [202, 203, 204]), (OTHER, [206])]
    assert widths_of(model, SharedPrompts(LabelledHead(model), model).scores, rows) == [(33, 3)]


def test_rows_go_as_they_are_where_pieces_would_be_no_less(model):
    # One row alone needs 92 columns, so the pieces would be as wide.
    assert widths_of(model, SharedPrompts(LabelledHead(model), model).scores, ROWS) == [(7, 92)]


def test_a_model_that_sees_a_window_only_gets_whole_rows():
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=384, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, sliding_window=4,
    )  # fmt: skip
    model = MistralForCausalLM(config)
    assert widths_of(model, SharedPrompts(LabelledHead(model), model).scores, ROWS) == [(7, 92)]
