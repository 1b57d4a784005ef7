"""Adapters on experts, whose files hold each expert alone, all in one tensor, or under other names."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from merge.merge_cases import Case, logits, logits_of_folder, make_case, merge_case, merged_by_peft, weights
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ModelError
from posttrain.merge.verify import verify_merge
from posttrain.models.hf import HfBackend
from posttrain.models.weights.merged import write_merged_weights
from tiny_experts import write_tiny_experts

KINDS = ["qwen3_moe", "olmoe", "mixtral", "gpt_oss"]
EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]


def a_case(folder: Path, kind: str, **lora: Any) -> Case:
    base = ModelConfig(name=str(write_tiny_experts(folder / "base", kind)), backend="hf", dtype="float32")
    return make_case(base, folder / "adapter", **lora)


@pytest.fixture(params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Adapters on attention, experts and, where PEFT's all-linear reaches it, the router."""
    return a_case(tmp_path, request.param, target_parameters=EXPERTS)


def test_the_merged_model_computes_what_the_adapter_does(case, tmp_path):
    merge_case(case, tmp_path / "merged")
    base = logits_of_folder(Path(case.base.name), case.ids)
    assert (case.logits - base).abs().max() > 0.1
    torch.testing.assert_close(logits_of_folder(tmp_path / "merged", case.ids), case.logits, atol=1e-5, rtol=1e-5)
    found = verify_merge(case.base, case.adapter, tmp_path / "merged", chat=case.chat, weights_dtype=torch.float32)
    assert found.max_difference <= found.tolerance


def test_its_files_have_the_tensors_of_the_base_and_the_values_of_peft(case, tmp_path):
    report = merge_case(case, tmp_path / "merged")
    found, base = weights(tmp_path / "merged"), weights(Path(case.base.name))
    assert {name: each.shape for name, each in found.items()} == {name: each.shape for name, each in base.items()}
    changed = [name for name, each in found.items() if not torch.equal(each, base[name])]
    assert len(changed) == report.merged
    assert any("experts" in name for name in changed)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").state_dict()
    for name, values in merged_by_peft(case).items():
        torch.testing.assert_close(loaded[name], values, atol=1e-6, rtol=1e-6)


def test_an_engine_gets_the_same_weights_from_the_model_in_training(case, tmp_path):
    loaded = HfBackend().load_for_inference(case.base, case.adapter, chatml=True)
    write_merged_weights(loaded.model, tmp_path / "engine", torch.float32)
    torch.testing.assert_close(logits_of_folder(tmp_path / "engine", case.ids), case.logits, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(loaded.model, case.ids), case.logits)


def test_a_16_bit_base_is_rounded_once(tmp_path):
    case = a_case(tmp_path, "qwen3_moe", target_modules=["q_proj"], target_parameters=EXPERTS)
    merge_case(case, tmp_path / "exact")
    merge_case(case, tmp_path / "merged", dtype="bfloat16")
    for name, values in weights(tmp_path / "exact").items():
        assert torch.equal(weights(tmp_path / "merged")[name], values.bfloat16())


def test_one_adapted_parameter_of_two_leaves_the_other_as_it_is(tmp_path):
    case = a_case(tmp_path, "qwen3_moe", target_modules=["q_proj"], target_parameters=["experts.down_proj"])
    merge_case(case, tmp_path / "merged")
    found, base = weights(tmp_path / "merged"), weights(Path(case.base.name))
    changed = {name.split(".")[-2] for name, each in found.items() if not torch.equal(each, base[name])}
    assert changed == {"q_proj", "down_proj"}


def test_a_base_without_an_expert_is_refused_by_the_parameters_name(tmp_path):
    case = a_case(tmp_path, "qwen3_moe", target_parameters=EXPERTS)
    file = Path(case.base.name) / "model.safetensors"
    save_file(
        {name: each for name, each in load_file(file).items() if "experts.3.up_proj" not in name},
        file,
        metadata={"format": "pt"},
    )
    with pytest.raises(ModelError, match=r"would not be used: the base model's files lack .*experts\.gate_up_proj"):
        merge_case(case, tmp_path / "merged")
