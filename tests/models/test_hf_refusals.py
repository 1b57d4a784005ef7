"""Unusable models and adapters are refused with a one-line ModelError."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, CTRLConfig, CTRLLMHeadModel, LlamaConfig, LlamaForCausalLM

from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ModelError
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.train.plan import find_model


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("name", ["owner/not-there", "not-there"])
def test_a_hub_id_that_cannot_be_reached_says_in_one_line_what_works_without_a_hub(train, name):
    with pytest.raises(ModelError, match=rf"^model\.name: cannot load '{name}': [^\n]*\(without a hub, give a [^\n]*$"):
        train(name=name)


def test_an_attention_that_is_not_installed_is_refused_in_one_line(train):
    with pytest.raises(ModelError, match=r"^model\.name: cannot load [^\n]*FlashAttention2[^\n]*$"):
        train(attention="flash_attention_2")


def test_files_that_are_cut_short_or_empty_are_refused_in_one_line(train, copied, tiny_model):
    for file in ("model.safetensors", "tokenizer.json", "config.json"):
        whole = (tiny_model / file).read_bytes()
        for content in (whole[: len(whole) // 2], b""):
            (copied / file).write_bytes(content)
            with pytest.raises(ModelError, match=r"^model\.name: cannot load '[^\n]*copy': [^\n]+$"):
                train(name=str(copied))
        (copied / file).write_bytes(whole)
    assert train(name=str(copied)).model is not None


def test_a_folder_without_weights_is_refused(train, copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"no file named model\.safetensors"):
        train(name=str(copied))


def test_weights_that_are_missing_are_not_made_up(train, copied):
    edit_json(copied / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match=r"lacks 9 of its weights, such as model\.layers\.2\.input_layernorm\.weight"):
        train(name=str(copied))


def test_weights_of_another_shape_are_refused(train, copied):
    edit_json(copied / "config.json", intermediate_size=96)
    with pytest.raises(ModelError, match=r"^model\.name: cannot load [^\n]+$"):
        train(name=str(copied))


def test_a_folder_that_is_no_adapter_is_refused(train, tiny_model, tmp_path):
    for folder in (tiny_model, tmp_path / "nowhere"):
        with pytest.raises(ModelError, match=r"has no adapter_config\.json, so it is not a LoRA adapter"):
            train(adapter=folder)


@pytest.fixture
def damaged(adapter, tmp_path):
    """A copy of the adapter's folder for tests to damage."""
    return shutil.copytree(adapter, tmp_path / "damaged")


def refused(train, folder) -> str:
    with pytest.raises(ModelError) as caught:
        train(adapter=folder)
    message = str(caught.value)
    assert message.startswith((str(folder), f"the adapter in {folder}", "model.adapter: "))
    assert str(folder) in message
    assert "\n" not in message
    return message


def test_an_adapter_without_weights_is_refused(train, damaged):
    (damaged / "adapter_model.safetensors").unlink()
    assert "has no adapter_model.safetensors" in refused(train, damaged)


def test_an_adapter_whose_weights_are_cut_short_is_refused(train, damaged):
    file = damaged / "adapter_model.safetensors"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], b""):
        file.write_bytes(content)
        refused(train, damaged)


@pytest.mark.parametrize("text", ["", "{", "{}", '{"peft_type": "WHAT"}'])
def test_an_adapter_whose_config_cannot_be_read_is_refused(train, damaged, text):
    (damaged / "adapter_config.json").write_text(text)
    refused(train, damaged)


def test_an_adapter_of_another_rank_is_refused_with_both_ranks(train, damaged):
    edit_json(damaged / "adapter_config.json", r=8)
    message = refused(train, damaged)
    assert "(rank 8, made for " in message
    assert "the weights of model.layers.0.mlp.up_proj have rank 2; is adapter_config.json its own?" in message


def test_an_adapter_for_modules_that_the_model_lacks_is_refused(train, damaged):
    edit_json(damaged / "adapter_config.json", target_modules=["c_attn"])
    assert "c_attn" in refused(train, damaged)


def test_an_adapter_of_a_model_with_fewer_layers_is_refused(train, damaged):
    weights = load_file(damaged / "adapter_model.safetensors")
    fewer = {name: each for name, each in weights.items() if ".layers.1." not in name}
    save_file(fewer, damaged / "adapter_model.safetensors")
    message = refused(train, damaged)
    assert "made for another model: 4 of its weights" in message
    assert ".layers.1." in message


def test_an_adapter_of_a_model_with_more_layers_is_refused_before_anything_is_loaded(train, damaged, copied):
    weights = load_file(damaged / "adapter_model.safetensors")
    more = {name.replace(".layers.1.", ".layers.2."): each.clone() for name, each in weights.items()}
    save_file({**weights, **more}, damaged / "adapter_model.safetensors")
    assert refused(train, damaged).endswith("the model has no model.layers.2.mlp.up_proj")
    model = ModelConfig(name=str(copied), adapter=damaged)
    with pytest.raises(ModelError, match=r"rank 2, made for .*\) does not fit .*the model has no model\.layers\.2\."):
        find_model(model)  # as a dry run does


def test_an_adapter_of_a_wider_model_is_refused_with_the_first_layer_that_does_not_fit(train, tmp_path, tiny_model):
    config = LlamaConfig.from_pretrained(tiny_model)
    config.hidden_size, config.head_dim = 128, 32
    LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "wide")
    train(name=str(tmp_path / "wide")).model.save_pretrained(tmp_path / "adapter")
    message = refused(train, tmp_path / "adapter")
    assert f"(rank 2, made for {tmp_path / 'wide'})" in message
    assert "down_proj maps 128 to 128 in the adapter, and has a weight of 64 × 128 in the model" in message


def test_what_files_cannot_tell_is_left_to_loading(train, damaged, copied):
    """Layers that the files name otherwise, quantised or transposed weights, ranks that differ by layer."""
    weights = load_file(copied / "model.safetensors")
    save_file({f"text.{name}": each for name, each in weights.items()}, copied / "model.safetensors")
    require_adapter_fits(damaged, ModelConfig(name=str(copied)))
    save_file({name: each.to(torch.uint8)[:1] for name, each in weights.items()}, copied / "model.safetensors")
    require_adapter_fits(damaged, ModelConfig(name=str(copied)))
    turned = {name: each.T.contiguous() if each.ndim == 2 else each for name, each in weights.items()}
    save_file(turned, copied / "model.safetensors")
    require_adapter_fits(damaged, ModelConfig(name=str(copied)))
    edit_json(damaged / "adapter_config.json", r=8, rank_pattern={".*": 2})
    require_adapter_fits(damaged, ModelConfig(name=str(copied)))


def test_checkpointing_that_an_architecture_does_not_have_is_refused_in_one_line(train, copied):
    sizes = {"vocab_size": 384, "n_embd": 8, "n_layer": 1, "n_head": 2, "dff": 8, "n_positions": 64}
    CTRLLMHeadModel(CTRLConfig(**sizes)).save_pretrained(copied)
    with pytest.raises(ModelError, match=r"^training.gradient_checkpointing: [^\n]*CTRL[^\n]*; set it to false$"):
        train(None, name=str(copied), checkpointing=True)
