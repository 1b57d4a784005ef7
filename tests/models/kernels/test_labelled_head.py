"""The head runs only where a token carries loss, and the losses equal those from the full logits."""

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from posttrain.config.sections.model import LoraConfig
from posttrain.conversation.masks import IGNORED_LABEL
from posttrain.models.adapters.lora import add_adapter
from posttrain.models.kernels.labelled_head import LabelledHead
from posttrain.models.tokens import extend_model

# Three rows of 6, 4 and 2 tokens, padded on the right. 3 + 2 + 1 labels.
INPUTS = torch.tensor([[1, 10, 20, 30, 40, 50], [1, 60, 70, 80, 0, 0], [1, 90, 0, 0, 0, 0]])
N = IGNORED_LABEL
LABELS = torch.tensor([[N, N, 30, 40, 50, N], [N, 70, 80, N, N, N], [90, N, N, N, N, N]])
LENGTHS = (6, 4, 2)


def _tied(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


def _untied(tiny_model):
    config = LlamaConfig.from_pretrained(tiny_model)
    config.tie_word_embeddings = False
    torch.manual_seed(1)
    return LlamaForCausalLM(config)


def _with(base, new_ids=(), **lora):
    extend_model(base, new_ids)
    model = add_adapter(base, LoraConfig(r=4, **lora), new_ids, seed=0)
    torch.manual_seed(2)
    with torch.no_grad():  # a fresh adapter changes nothing, so leaving it out would go unnoticed
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
    return model


MODELS = {
    "all weights, tied": _tied,
    "all weights, untied": _untied,
    "an adapter": lambda tiny: _with(_tied(tiny)),
    "an adapter, and the tied head in full": lambda tiny: _with(_tied(tiny), modules_to_save=("lm_head",)),
    "an adapter, and the untied head in full": lambda tiny: _with(_untied(tiny), modules_to_save=("lm_head",)),
    "an adapter on the head": lambda tiny: _with(_untied(tiny), target_modules=("lm_head", "q_proj")),
    "DoRA on the head": lambda tiny: _with(_untied(tiny), target_modules=("lm_head", "q_proj"), dora=True),
    "an adapter, and rows of new tokens, tied": lambda tiny: _with(_tied(tiny), (380, 381)),
    "an adapter, and rows of new tokens, untied": lambda tiny: _with(_untied(tiny), (380, 381)),
}


@pytest.fixture(params=MODELS)
def model(request, tiny_model):
    return MODELS[request.param](tiny_model)


def whole_losses(model, inputs, labels) -> torch.Tensor:
    """Losses from the logits of every position, without any of the code under test."""
    logits = model(input_ids=inputs, use_cache=False).logits
    losses = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="none"
    )
    return losses[labels.flatten() != IGNORED_LABEL]


def gradients(model, losses: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    losses.sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def test_a_head_that_is_trained_sees_as_many_rows_as_there_are_labels(tiny_model):
    model = _tied(tiny_model)
    head = LabelledHead(model)
    seen: list[tuple[torch.Size, torch.Size]] = []
    layer = model.get_output_embeddings()
    layer.register_forward_hook(lambda _, arguments, output: seen.append((arguments[0].shape, output.shape)))
    head.token_losses(model, INPUTS, LABELS)
    assert seen == [((6, 64), (6, 384))]


def test_a_frozen_head_is_not_asked_for_logits_at_all(tiny_model):
    model = _with(_tied(tiny_model))
    head = LabelledHead(model)
    seen: list[torch.Size] = []
    model.get_output_embeddings().register_forward_hook(lambda _, arguments, output: seen.append(output.shape))
    head.token_losses(model, INPUTS, LABELS)
    assert seen == [(0, 384)]


@pytest.mark.parametrize("lora", [False, True], ids=["a trained head", "a frozen head"])
def test_a_temperature_divides_the_logits_and_entropies_are_those_of_the_whole_softmax(tiny_model, lora):
    model = _with(_tied(tiny_model)) if lora else _tied(tiny_model)
    temperatures = torch.linspace(0.7, 1.3, int((LABELS != N).sum()))
    logits = model(input_ids=INPUTS, use_cache=False).logits[LABELS != N] / temperatures.unsqueeze(1)
    chosen, entropies = LabelledHead(model).scores(model, INPUTS, LABELS, temperatures=temperatures, entropies=True)
    spread = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(chosen, spread.log_prob(LABELS[LABELS != N]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(entropies, spread.entropy(), rtol=1e-5, atol=1e-5)
    assert not entropies.requires_grad


@pytest.mark.parametrize("lora", [False, True], ids=["a trained head", "a frozen head"])
def test_smoothed_losses_are_those_of_torch(tiny_model, lora):
    model = _with(_tied(tiny_model)) if lora else _tied(tiny_model)
    logits = model(input_ids=INPUTS, use_cache=False).logits[LABELS != N]
    found = LabelledHead(model).scores(model, INPUTS, LABELS, smoothing=0.2)[0]
    expected = functional.cross_entropy(logits, LABELS[LABELS != N], reduction="none", label_smoothing=0.2)
    torch.testing.assert_close(-found, expected, rtol=1e-5, atol=1e-6)


def test_logits_that_a_model_caps_go_through_the_model():
    """Gemma 2 maps logits to 5·tanh(x/5) here, which the product with the head alone would miss."""
    torch.manual_seed(3)
    config = Gemma2Config(
        vocab_size=384, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, final_logit_softcapping=5.0,
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval().requires_grad_(False)
    with torch.no_grad():
        model.lm_head.weight.mul_(100)
        logits = model(input_ids=INPUTS, use_cache=False).logits[LABELS != N]
        losses = LabelledHead(model).token_losses(model, INPUTS, LABELS)
    assert logits.abs().max() > 4
    torch.testing.assert_close(losses, functional.cross_entropy(logits, LABELS[LABELS != N], reduction="none"))


def test_losses_and_gradients_are_those_of_the_whole_logits(model):
    expected = whole_losses(model, INPUTS, LABELS)
    expected_gradients = gradients(model, expected)
    losses = LabelledHead(model).token_losses(model, INPUTS, LABELS)
    assert losses.shape == (6,)
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=1e-6)
    found = gradients(model, losses)
    assert found.keys() == expected_gradients.keys()
    assert any("lora_B" in name or "lm_head" in name or "embed_tokens" in name for name in found)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6)


def test_padding_on_the_right_changes_no_loss(model):
    head = LabelledHead(model)
    padded = head.token_losses(model, INPUTS, LABELS)
    alone = [
        head.token_losses(model, INPUTS[row : row + 1, :length], LABELS[row : row + 1, :length])
        for row, length in enumerate(LENGTHS)
    ]
    torch.testing.assert_close(padded, torch.cat(alone), rtol=1e-6, atol=1e-6)


def test_what_is_in_the_padding_changes_no_loss(tiny_model):
    model = _tied(tiny_model)
    head = LabelledHead(model)
    other = INPUTS.clone()
    other[1, 4:] = 300
    other[2, 2:] = 301
    assert torch.equal(head.token_losses(model, INPUTS, LABELS), head.token_losses(model, other, LABELS))


def test_losses_come_in_the_order_of_the_rows(tiny_model):
    model = _tied(tiny_model)
    head = LabelledHead(model)
    losses = head.token_losses(model, INPUTS, LABELS)
    first = head.token_losses(model, INPUTS[:1], LABELS[:1])
    last = head.token_losses(model, INPUTS[2:], LABELS[2:])
    torch.testing.assert_close(losses[:3], first, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(losses[5:], last, rtol=1e-6, atol=1e-6)


def test_without_a_mask_the_head_is_untouched(model):
    with torch.no_grad():
        before = model(input_ids=INPUTS).logits
        head = LabelledHead(model)
        assert torch.equal(model(input_ids=INPUTS).logits, before)
        head.token_losses(model, INPUTS, LABELS)
        assert torch.equal(model(input_ids=INPUTS).logits, before)


def test_a_failure_inside_leaves_the_head_as_it_was(tiny_model):
    model = _tied(tiny_model)
    head = LabelledHead(model)
    with pytest.raises(IndexError):
        head.token_losses(model, INPUTS, torch.ones(1, 99, dtype=torch.long))
    assert model(input_ids=INPUTS).logits.shape == (3, 6, 384)


def test_a_detached_head_masks_nothing_any_more(tiny_model):
    model = _tied(tiny_model)
    hooks = len(model.get_output_embeddings()._forward_pre_hooks)
    head = LabelledHead(model)
    assert len(model.get_output_embeddings()._forward_pre_hooks) == hooks + 1
    head.detach()
    assert len(model.get_output_embeddings()._forward_pre_hooks) == hooks


def test_rows_without_a_label_give_no_loss_and_no_error(tiny_model):
    model = _tied(tiny_model)
    losses = LabelledHead(model).token_losses(model, INPUTS, torch.full_like(INPUTS, IGNORED_LABEL))
    assert losses.shape == (0,)
    losses.sum().backward()


def test_losses_are_float32_where_the_model_computes_in_bfloat16(tiny_model):
    model = _tied(tiny_model).to(torch.bfloat16)
    losses = LabelledHead(model).token_losses(model, INPUTS, LABELS)
    assert losses.dtype is torch.float32
    torch.testing.assert_close(losses, whole_losses(_tied(tiny_model), INPUTS, LABELS), rtol=0.02, atol=0.02)


def test_gradient_checkpointing_computes_the_same_losses_and_gradients(tiny_model):
    found = []
    for checkpointing in (False, True):
        model = _tied(tiny_model).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        losses = LabelledHead(model).token_losses(model, INPUTS, LABELS)
        found.append((losses.detach(), gradients(model, losses)))
    (plain, plain_gradients), (recomputed, recomputed_gradients) = found
    torch.testing.assert_close(recomputed, plain)
    for name, gradient in plain_gradients.items():
        torch.testing.assert_close(recomputed_gradients[name], gradient)
