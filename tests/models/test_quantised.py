"""Quantised bases train on a CPU, also after an evaluation, and LoftQ starts at what quantisation took from them."""

import pytest
import torch
from peft import PeftModel
from peft.utils.integrations import dequantize_module_weight
from transformers import AutoModelForCausalLM

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError
from posttrain.merge.merge import merge_adapter
from posttrain.models.frozen import start_of_training
from posttrain.models.load import choose_backend
from posttrain.models.weights.checkpoint import load_trained_weights
from posttrain.train.optim.optimizer import make_optimizers
from posttrain.train.optim.update import update

RANK, ALPHA = 4, 6
IDS = torch.randint(3, 300, (4, 24), generator=torch.Generator().manual_seed(7))
KINDS = pytest.mark.parametrize("kind", ["4bit", "8bit"])


def lora(init: str | None = None, **keys) -> LoraConfig:
    return LoraConfig.model_validate({"r": RANK, "alpha": ALPHA, "init": init, **keys})


def loss_of(model) -> torch.Tensor:
    return model(input_ids=IDS, labels=IDS).loss


def logits(model) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(input_ids=IDS).logits


def losses(model, steps: int = 4) -> list[float]:
    """The losses of a few steps on the same tokens."""
    settings = TrainingConfig(learning_rate=1e-2)
    optimizers, scaler, found = make_optimizers(model, settings), torch.amp.GradScaler(enabled=False), []
    model.train()
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        update(optimizers, scaler, settings.learning_rate, settings.max_grad_norm)
        found.append(float(loss.detach()))
    return found


def gradients(model) -> dict[str, torch.Tensor]:
    model.train()
    loss_of(model).backward()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


def base_of(folder):
    return AutoModelForCausalLM.from_pretrained(folder).requires_grad_(False)


@KINDS
def test_the_adapter_is_float32_and_the_matrices_of_the_layers_have_few_bits(train, kind):
    model = train(lora(), quantization=kind).model
    assert {each.dtype for each in model.parameters() if each.requires_grad} == {torch.float32}
    stored = {each.dtype for name, each in model.named_parameters() if name.endswith("q_proj.base_layer.weight")}
    assert stored == {torch.uint8 if kind == "4bit" else torch.int8}


@KINDS
def test_it_trains_close_to_full_precision(train, kind):
    few_bits = losses(train(lora(), quantization=kind).model)
    assert few_bits[-1] < few_bits[0] - 0.1
    assert few_bits == pytest.approx(losses(train(lora()).model), abs=0.1)


@KINDS
def test_an_evaluation_changes_no_gradient(train, kind):
    model = train(lora(), quantization=kind).model
    losses(model)
    before = gradients(model)
    logits(model)
    after = gradients(model)
    assert before.keys() == after.keys()
    assert any("layers.0" in name and bool(each.any()) for name, each in after.items())
    for name, each in before.items():
        torch.testing.assert_close(after[name], each, atol=1e-7, rtol=1e-4)


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("posttrain.base.extras.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^model\.quantization: 4bit needs bitsandbytes: pip install .*\[bitsandb"):
        choose_backend(ModelConfig(name="x", backend="hf", quantization="4bit"))


@KINDS
def test_loftq_starts_nearer_to_the_unquantised_base(train, tiny_model, kind):
    whole = logits(base_of(tiny_model))
    plain, started = (logits(train(lora(init, r=16), quantization=kind).model) for init in (None, "loftq"))
    assert (started - whole).norm() < 0.9 * (plain - whole).norm()


def test_what_it_makes_up_for_is_the_best_of_its_rank(train, tiny_model):
    model, name = train(lora("loftq"), quantization="4bit").model, "model.layers.0.mlp.down_proj"
    layer = model.get_base_model().get_submodule(name)
    down, up = layer.lora_A["default"].weight[:RANK], layer.lora_B["default"].weight[:, :RANK]
    weight = base_of(tiny_model).get_submodule(name).weight
    lost = weight - dequantize_module_weight(layer.get_base_layer())
    made_up = layer.scaling["default"] * up @ down
    # By Eckart and Young, what is left of a matrix is its smaller singular values.
    left = torch.linalg.svdvals(lost)[RANK:].norm()
    assert float((lost - made_up).norm().detach()) == pytest.approx(float(left), rel=1e-4)
    # The layer under the adapter adds it to what the quantised weight computes.
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(1))
    wanted = x @ (weight - lost + made_up).T
    torch.testing.assert_close(layer.get_base_layer()(x), wanted, atol=1e-4, rtol=1e-4)


def test_it_trains_as_an_adapter_of_its_rank_on_the_quantised_base(train):
    started, plain = train(lora("loftq"), quantization="4bit").model, train(lora(), quantization="4bit").model
    values = {name: each.detach().clone() for name, each in started.named_parameters() if ".lora_" in name}
    with torch.no_grad():
        for name, each in plain.named_parameters():
            if ".lora_" in name:
                each.copy_(values[name][:, :RANK] if "lora_B" in name else values[name][:RANK])
    found = losses(started)
    assert found[-1] < found[0] - 0.1
    assert found == pytest.approx(losses(plain), abs=1e-4)


def test_without_its_adapter_it_is_the_start_for_good(train):
    model = train(lora("loftq"), quantization="4bit").model
    frozen, before = start_of_training(model, new_adapter=True, asked_later=True), logits(model)
    losses(model)
    assert (logits(model) - before).abs().max() > 1e-2
    with frozen.asked() as asked:
        torch.testing.assert_close(asked(input_ids=IDS).logits, before, atol=1e-5, rtol=0)


def test_a_checkpoint_goes_on_as_if_it_had_not_been_left(train, tmp_path):
    model, again = (train(lora("loftq"), quantization="4bit").model for _ in range(2))
    losses(model)
    model.save_pretrained(tmp_path)
    load_trained_weights(again, tmp_path)
    assert losses(again) == losses(model)


def test_saved_and_merged_in_both_ways_it_computes_the_same_on_the_original_base(train, tiny_model, tmp_path):
    model = train(lora("loftq", r=16), quantization="4bit").model
    losses(model)
    model.save_pretrained(tmp_path / "adapter")
    base = ModelConfig(name=str(tiny_model), backend="hf", dtype="float32")
    merge_adapter(base, tmp_path / "adapter", tmp_path / "merged", chat=ChatConfig())
    adapted = logits(PeftModel.from_pretrained(base_of(tiny_model), tmp_path / "adapter"))
    torch.testing.assert_close(logits(base_of(tmp_path / "merged")), adapted, atol=1e-5, rtol=0)
    # It was trained on the approximation of the base, and differs from it by no more than that does from the base.
    with model.disable_adapter():
        apart = (logits(model) - logits(base_of(tiny_model))).norm()
    assert (logits(model) - adapted).norm() < 1.5 * apart


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
def test_a_layer_that_is_not_quantised_starts_at_zero(train):
    model = train(lora("loftq", target_modules=["q_proj", "lm_head"]), quantization="4bit").model
    head = model.get_base_model().lm_head
    down, up = head.lora_A["default"].weight, head.lora_B["default"].weight
    assert torch.equal(down[:RANK], down[RANK:])
    assert bool(down.any())
    assert not up.any()
    losses(model)
    assert bool(up[:, :RANK].any())
    assert not up[:, RANK:].any()
