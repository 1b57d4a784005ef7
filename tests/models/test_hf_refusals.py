"""Unusable models and adapters are refused with a one-line ModelError."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from posttrain.errors import ModelError


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_quantization_without_cuda_is_refused_with_what_to_do(train):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for kind in ("4bit", "8bit"):
        with pytest.raises(ModelError, match=rf"^model\.quantization: {kind} needs a CUDA device; set it to none$"):
            train(quantization=kind)


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
    assert message.startswith(str(folder)) or message.startswith(f"the adapter in {folder}")
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


def test_an_adapter_of_another_rank_is_refused_with_both_shapes(train, damaged):
    edit_json(damaged / "adapter_config.json", r=8)
    message = refused(train, damaged)
    assert "torch.Size([2, 64])" in message
    assert "torch.Size([8, 64])" in message


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


def test_an_adapter_of_a_model_with_more_layers_is_refused(train, damaged):
    weights = load_file(damaged / "adapter_model.safetensors")
    more = {name.replace(".layers.1.", ".layers.2."): each.clone() for name, each in weights.items()}
    save_file({**weights, **more}, damaged / "adapter_model.safetensors")
    message = refused(train, damaged)
    assert "made for another model: 4 of its weights" in message
    assert ".layers.2." in message


def test_an_adapter_of_a_wider_model_is_refused(train, tmp_path, tiny_model):
    config = LlamaConfig.from_pretrained(tiny_model)
    config.hidden_size, config.head_dim = 128, 32
    LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "wide")
    train(name=str(tmp_path / "wide")).model.save_pretrained(tmp_path / "adapter")
    assert "size mismatch" in refused(train, tmp_path / "adapter")
