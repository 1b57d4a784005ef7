"""Merged weights of a live model: the files compute what the model does, and the model stays unchanged."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from posttrain.errors import ModelError
from posttrain.models.weights.merged import write_merged_weights

IDS = torch.arange(3, 63).reshape(2, 30)


@pytest.fixture
def model(sharp_model: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(sharp_model, dtype="float32").eval()


@pytest.fixture
def untied(model: PreTrainedModel) -> PreTrainedModel:
    model.config.tie_word_embeddings = False
    head: Any = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(2 * head.weight.detach().flip(0))
    return model


def adapted(model: PreTrainedModel, **options: Any) -> Any:
    """The model with an adapter of random weights; rsLoRA doubles its scale."""
    torch.manual_seed(2)
    options = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, **options}
    return get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **options)).eval()


def logits_of_files(folder: Path) -> torch.Tensor:
    loaded, loading = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", output_loading_info=True)
    assert not any(loading.values())
    return loaded.eval()(IDS).logits


def assert_written(model: Any, folder: Path) -> None:
    """Assert that the files compute what the model does, and that every weight and flag of the model is unchanged."""
    before = {name: values.clone() for name, values in model.state_dict().items()}
    flags = [(name, each.requires_grad, each.data_ptr()) for name, each in model.named_parameters()]
    write_merged_weights(model, folder, torch.float32)
    logits = model(IDS).logits
    torch.testing.assert_close(logits_of_files(folder), logits, rtol=1e-4, atol=1e-4 * logits.abs().max().item())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert [(name, each.requires_grad, each.data_ptr()) for name, each in model.named_parameters()] == flags


@torch.no_grad()
def moved(model: Any) -> Any:
    """The model with its trained parameters moved from their start: modules saved in full begin as copies."""
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"v_proj": 3}},
        {"modules_to_save": ["norm"]},
        {"trainable_token_indices": {"embed_tokens": [3, 4, 5]}},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ],
    ids=lambda options: ",".join(options) or "plain",
)
@torch.inference_mode()
def test_every_kind_of_adapter_is_folded_in(model: PreTrainedModel, tmp_path: Path, options: dict[str, Any]):
    plain = model(IDS).logits
    live = moved(adapted(model, **options))
    assert not torch.allclose(live(IDS).logits, plain, atol=0.1)
    assert_written(live, tmp_path)
    assert_written(moved(live), tmp_path)


@pytest.mark.parametrize(
    "options", [{"target_modules": ["lm_head", "embed_tokens", "q_proj"]}, {"modules_to_save": ["lm_head"]}]
)
@torch.inference_mode()
def test_a_head_of_its_own_can_be_trained(untied: PreTrainedModel, tmp_path: Path, options: dict[str, Any]):
    assert_written(moved(adapted(untied, **options)), tmp_path)


@torch.inference_mode()
def test_a_model_without_adapter_is_written_as_it_is(model: PreTrainedModel, tmp_path: Path):
    assert_written(moved(model), tmp_path)


def test_weights_are_rounded_to_the_wanted_dtype_once(model: PreTrainedModel, tmp_path: Path):
    live = adapted(model)
    write_merged_weights(live, tmp_path, torch.bfloat16)
    written = load_file(tmp_path / "model.safetensors")
    merged = copy.deepcopy(live).merge_and_unload().state_dict()
    assert sorted(written) == sorted(set(merged) - {"lm_head.weight"})
    for name, values in written.items():
        assert values.dtype is torch.bfloat16
        assert torch.equal(values, merged[name].bfloat16())


@pytest.mark.parametrize("options", [{"target_modules": ["lm_head"]}, {"modules_to_save": ["embed_tokens"]}])
def test_a_head_that_an_adapter_parts_from_its_embedding_is_refused(model, tmp_path: Path, options: dict[str, Any]):
    with pytest.raises(ModelError, match=r"lm_head is tied to .*, but an adapter makes them differ"):
        write_merged_weights(moved(adapted(model, **options)), tmp_path, torch.float32)


def test_a_quantised_weight_is_refused(model: PreTrainedModel, tmp_path: Path):
    live = adapted(model)
    layer = live.get_base_model().model.layers[1].self_attn.q_proj.base_layer
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.uint8), requires_grad=False)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_proj is quantised"):
        write_merged_weights(live, tmp_path, torch.float32)


@pytest.mark.parametrize("options", [{"alora_invocation_tokens": [1, 5]}, {"lora_bias": True}])
def test_an_adapter_that_is_no_change_of_weights_is_refused(model, tmp_path: Path, options: dict[str, Any]):
    live = adapted(model, **options)
    with pytest.raises(ModelError, match="PEFT cannot merge the adapter of"):
        write_merged_weights(live, tmp_path, torch.float32)


def test_a_folder_that_cannot_be_written_is_named(model: PreTrainedModel, tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match=r"cannot write the merged weights to .*file"):
        write_merged_weights(model, tmp_path / "file" / "folder", torch.float32)
