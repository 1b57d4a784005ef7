"""The toolkit's LoRA layer computes the same as PEFT's and leaves to PEFT what it does not support."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model
from peft.tuners import lora
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from posttrain.models.adapters.lora import with_fused_layers
from posttrain.models.kernels.fused_lora import FusedLinear

IDS = torch.tensor([[1, 10, 20, 30], [1, 60, 70, 80]])


def adapted(base, fused: bool, **options):
    """`base` with an adapter that has already learnt something."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    torch.manual_seed(0)
    model = get_peft_model(base, with_fused_layers(config, base) if fused else config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.05 * torch.randn_like(parameter)
    return model


def both(load, **options):
    return [adapted(load(), fused, **options).train() for fused in (False, True)]


def logits_and_gradients(model, ids=IDS):
    model.zero_grad()
    torch.manual_seed(1)  # for the dropout
    logits = model(input_ids=ids, use_cache=False).logits
    logits.float().square().mean().backward()
    return logits.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def layers(model, kind):
    return [module for module in model.modules() if type(module) is kind]


@pytest.fixture
def load(tiny_model):
    return lambda: AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.mark.parametrize(
    "options", [{}, {"use_rslora": True}, {"use_dora": True}, {"lora_dropout": 0.5}, {"lora_bias": True}], ids=str
)
def test_logits_and_gradients_are_those_of_pefts_layer(load, options):
    plain, fused = both(load, **options)
    assert layers(plain, lora.Linear) and not layers(fused, lora.Linear)
    assert len(layers(fused, FusedLinear)) == len(layers(plain, lora.Linear))
    (logits, gradients), (ours, our_gradients) = map(logits_and_gradients, (plain, fused))
    torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-6)
    assert our_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(our_gradients[name], gradient, rtol=1e-4, atol=1e-7)


def test_layers_with_a_bias_keep_it():
    """Qwen 2 has biases on its query, key and value projections."""
    config = Qwen2Config(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1,
    )  # fmt: skip

    def load():
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
        for name, parameter in model.named_parameters():
            if name.endswith("proj.bias"):
                torch.nn.init.normal_(parameter)
        return model

    (logits, _), (ours, _) = map(logits_and_gradients, both(load))
    torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-6)


def test_under_autocast_float32_adapters_on_a_bfloat16_base_get_float32_gradients(load):
    (logits, gradients), (ours, our_gradients) = (
        under_autocast(model) for model in both(lambda: load().to(torch.bfloat16))
    )
    assert ours.dtype == logits.dtype == torch.bfloat16
    torch.testing.assert_close(ours, logits, rtol=0.05, atol=0.05)
    for name, gradient in gradients.items():
        assert our_gradients[name].dtype == torch.float32
        assert torch.cosine_similarity(our_gradients[name].flatten(), gradient.flatten(), dim=0) > 0.99


def test_a_float32_base_under_autocast_is_left_to_peft(load):
    (logits, gradients), (ours, our_gradients) = (under_autocast(model) for model in both(load))
    assert torch.equal(ours, logits)
    for name, gradient in gradients.items():
        assert torch.equal(our_gradients[name], gradient)


def under_autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        return logits_and_gradients(model)


def test_a_disabled_and_a_merged_adapter_are_left_to_peft(load):
    base, model = load().eval(), adapted(load(), fused=True).eval()
    with torch.no_grad():
        before = model(input_ids=IDS).logits
        with model.disable_adapter():
            torch.testing.assert_close(model(input_ids=IDS).logits, base(input_ids=IDS).logits)
        model.merge_adapter()
        torch.testing.assert_close(model(input_ids=IDS).logits, before, rtol=1e-4, atol=1e-5)
        model.unmerge_adapter()
        torch.testing.assert_close(model(input_ids=IDS).logits, before, rtol=1e-4, atol=1e-5)


def test_of_two_adapters_the_active_one_is_computed(load):
    models = []
    for model in both(load):
        torch.manual_seed(2)
        model.add_adapter("other", model.peft_config["default"])
        model.set_adapter("other")
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B.other" in name:
                    parameter += 0.1
        models.append(model)
    (logits, _), (ours, _) = map(logits_and_gradients, models)
    torch.testing.assert_close(ours, logits, rtol=1e-5, atol=1e-6)


def test_a_saved_adapter_is_one_that_peft_loads_and_computes_alike(load, tmp_path):
    model = adapted(load(), fused=True)
    model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(load(), tmp_path)
    assert layers(loaded, lora.Linear)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded(input_ids=IDS).logits, model.eval()(input_ids=IDS).logits, rtol=1e-5, atol=1e-6
        )


def test_gradient_checkpointing_gives_the_same_gradients(load):
    _, model = both(load)
    _, gradients = logits_and_gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    _, recomputed = logits_and_gradients(model)
    for name, gradient in gradients.items():
        torch.testing.assert_close(recomputed[name], gradient)


def test_in_16_bits_a_part_below_half_a_unit_of_the_output_is_there_on_average():
    torch.manual_seed(0)
    container = nn.ModuleDict({"layer": nn.Linear(256, 256, bias=False, dtype=torch.bfloat16)})
    config = with_fused_layers(LoraConfig(r=4, lora_alpha=4, target_modules=["layer"]), container)
    inject_adapter_in_model(config, container, "default")
    layer: Any = container["layer"]
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    x = torch.randn(512, 256).bfloat16()
    with torch.no_grad():
        before = layer(x).float()
        up.copy_(1e-4 * torch.randn(256, 4))
        part = x.float() @ (up.float() @ down.float()).T
        found = layer(x).float() - before
    # A unit of most outputs, which are between 1/4 and 2, is 1/512 or more: far above a part of about 1e-4.
    assert float(part.abs().mean()) < 2e-4
    assert float((found * part).sum() / part.square().sum()) == pytest.approx(1, abs=0.2)
