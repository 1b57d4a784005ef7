"""Building a PEFT model from the lora section."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from posttrain.config.sections.model import LoraConfig
from posttrain.errors import ModelError
from posttrain.models.adapters.lora import add_adapter, peft_config
from posttrain.models.tokens import extend_model

LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


@pytest.fixture
def tied(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model)


@pytest.fixture
def untied(tiny_model):
    config = LlamaConfig.from_pretrained(tiny_model)
    config.tie_word_embeddings = False
    torch.manual_seed(1)
    return LlamaForCausalLM(config)


def adapted(model, new_ids=(), seed=0, **lora):
    return add_adapter(model, LoraConfig(r=4, alpha=8, **lora), new_ids, seed)


def trained(model) -> dict[str, torch.Tensor]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def layers_with(model, kind: str = "lora_A") -> set[str]:
    return {name.split(f".{kind}")[0].rsplit(".", 1)[-1] for name in trained(model) if f".{kind}" in name}


def others_than_lora(model) -> list[str]:
    return sorted(name.removeprefix("base_model.model.") for name in trained(model) if ".lora_" not in name)


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        ("all-linear", LINEAR),
        ("auto", {"q_proj", "v_proj"}),  # PEFT's choice for Llama
        (("q_proj", "down_proj"), {"q_proj", "down_proj"}),
        (("mlp.up_proj",), {"up_proj"}),
    ],
    ids=["all-linear", "auto", "two names", "one name"],
)
def test_the_targets_get_an_adapter_and_everything_else_is_frozen(tied, targets, layers):
    model = adapted(tied, target_modules=targets)
    assert layers_with(model) == layers
    assert others_than_lora(model) == []
    # A and B, in two layers.
    assert len(trained(model)) == 2 * 2 * len(layers)


def test_rank_and_scale_are_those_of_the_config(tied):
    model = adapted(tied)
    layer = model.base_model.model.model.layers[0].self_attn.q_proj
    assert layer.lora_A["default"].weight.shape == (4, 64)
    assert layer.scaling["default"] == 8 / 4


def test_the_rank_stabilised_scale_divides_by_the_root_of_the_rank(tied):
    model = adapted(tied, rslora=True)
    assert model.base_model.model.model.layers[0].self_attn.q_proj.scaling["default"] == 8 / math.sqrt(4)


def test_dora_learns_a_magnitude_for_each_output(tied):
    model = adapted(tied, dora=True)
    assert layers_with(model, "lora_magnitude_vector") == LINEAR
    assert trained(model)["base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector.default.weight"].shape == (
        128,
    )


def test_dropout_is_on_the_adapters_input(tied):
    model = adapted(tied, dropout=0.25)
    assert model.base_model.model.model.layers[0].self_attn.q_proj.lora_dropout["default"].p == 0.25


def test_a_new_adapter_changes_nothing_yet(tied, tiny_model):
    ids = torch.tensor([[1, 5, 9]])
    with torch.no_grad():
        before = AutoModelForCausalLM.from_pretrained(tiny_model)(input_ids=ids).logits
        assert torch.equal(adapted(tied)(input_ids=ids).logits, before)


def test_the_same_seed_gives_the_same_start_whatever_was_drawn_before(tiny_model):
    starts = []
    for seed, drawn in ((3, 0), (3, 7), (4, 0)):
        base = AutoModelForCausalLM.from_pretrained(tiny_model)
        torch.rand(drawn)
        starts.append(trained(adapted(base, seed=seed)))
    same, again, other = starts
    assert all(torch.equal(same[name], again[name]) for name in same)
    assert not any(torch.equal(same[name], other[name]) for name in same if ".lora_A" in name)


@pytest.mark.parametrize("modules", [("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")], ids=str)
def test_a_tied_embedding_and_head_stay_one_matrix_when_they_are_trained_in_full(tied, modules):
    assert peft_config(tied, LoraConfig(modules_to_save=modules), ()).ensure_weight_tying
    model = adapted(tied, modules_to_save=modules)
    assert others_than_lora(model) == ["model.embed_tokens.modules_to_save.default.weight"]
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    assert embedding.modules_to_save["default"].weight is head.modules_to_save["default"].weight


def test_untied_ones_are_trained_apart(untied):
    model = adapted(untied, modules_to_save=("lm_head",))
    assert others_than_lora(model) == ["lm_head.modules_to_save.default.weight"]
    assert not peft_config(untied, LoraConfig(modules_to_save=("lm_head",)), ()).ensure_weight_tying


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ("nope",)},
        {"target_modules": ("q_proj", "nope")},
        {"target_modules": ("proj", "nope")},
        {"modules_to_save": ("nope",)},
        {"modules_to_save": ("lm_head", "nope")},
    ],
    ids=str,
)
def test_a_module_that_does_not_exist_is_named_even_beside_one_that_does(tied, lora):
    key = next(iter(lora))
    wrong = "proj" if "proj" in lora[key] else "nope"
    with pytest.raises(ModelError, match=rf"^lora\.{key}: this model has no module '{wrong}'; it has [^\n]*q_proj"):
        adapted(tied, **lora)


class UnheardOfConfig(LlamaConfig):
    model_type = "unheard_of"


def test_an_architecture_without_default_targets_says_so_in_one_line(tiny_model):
    unknown = LlamaForCausalLM(UnheardOfConfig.from_pretrained(tiny_model))
    with pytest.raises(ModelError, match=r"^lora\.target_modules: auto does not support unheard_of models[^\n]*$"):
        adapted(unknown, target_modules="auto")


def test_only_the_rows_of_new_tokens_are_trained_and_head_and_embedding_share_them(tied):
    extend_model(tied, (380, 381))
    model = adapted(tied, new_ids=(380, 381))
    rows = "model.embed_tokens.token_adapter.trainable_tokens_delta.default"
    assert others_than_lora(model) == [rows]
    assert trained(model)[f"base_model.model.{rows}"].shape == (2, 64)
    # The tied rows set both the embedding of token 380 and its logit.
    with torch.no_grad():
        trained(model)[f"base_model.model.{rows}"][0] += 1.0
        logits = model(input_ids=torch.tensor([[5]])).logits[0, 0]
    hidden = model.base_model.model.model(input_ids=torch.tensor([[5]])).last_hidden_state[0, 0]
    torch.testing.assert_close(logits[380], hidden @ trained(model)[f"base_model.model.{rows}"][0])


def test_new_tokens_give_no_warning(tied, recwarn):
    extend_model(tied, (380,))
    adapted(tied, new_ids=(380,))
    assert [str(warning.message) for warning in recwarn] == []


def test_untied_models_train_new_rows_on_both_sides(untied):
    extend_model(untied, (380,))
    assert others_than_lora(adapted(untied, new_ids=(380,))) == [
        "lm_head.token_adapter.trainable_tokens_delta.default",
        "model.embed_tokens.token_adapter.trainable_tokens_delta.default",
    ]


def test_a_head_trained_in_full_leaves_the_new_rows_of_the_embedding_to_be_trained(untied):
    extend_model(untied, (380,))
    assert others_than_lora(adapted(untied, new_ids=(380,), modules_to_save=("lm_head",))) == [
        "lm_head.modules_to_save.default.weight",
        "model.embed_tokens.token_adapter.trainable_tokens_delta.default",
    ]


def test_a_vocabulary_trained_in_full_needs_no_rows_of_its_own(tied):
    extend_model(tied, (380,))
    model = adapted(tied, new_ids=(380,), modules_to_save=("lm_head",))
    assert others_than_lora(model) == ["model.embed_tokens.modules_to_save.default.weight"]


@pytest.mark.parametrize("layer", ["embed_tokens", "lm_head"])
def test_an_adapter_on_the_vocabulary_and_new_tokens_exclude_each_other(tied, layer):
    extend_model(tied, (380,))
    with pytest.raises(ModelError, match=rf"{layer} cannot have an adapter while tokens are added .*modules_to_save"):
        adapted(tied, new_ids=(380,), target_modules=("q_proj", layer))
