"""Comparing the merged model with its adapter finds differences that rounding does not explain."""

from pathlib import Path

import pytest
import torch
from merge_cases import Case, make_base, make_case, merge_case
from safetensors.torch import load_file, save_file

from posttrain.errors import RunError
from posttrain.merge.verify import Verification, verify_merge


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return make_case(make_base(tmp_path / "base", tied=True, chatml=False, shard="1GB"), tmp_path / "adapter")


def verify(case: Case, merged: Path, dtype: torch.dtype) -> Verification:
    return verify_merge(case.base, case.adapter, merged, chat=case.chat, weights_dtype=dtype)


def test_a_right_merge_in_float32_differs_by_float32s_own_noise(case: Case, tmp_path: Path):
    merge_case(case, tmp_path / "merged")
    result = verify(case, tmp_path / "merged", torch.float32)
    assert result.max_difference < 1e-4
    assert result.top1_agreement == 1.0
    assert result.tokens > 100


def test_a_right_merge_in_bfloat16_differs_by_no_more_than_its_rounding(case: Case, tmp_path: Path):
    merge_case(case, tmp_path / "merged", dtype="bfloat16")
    result = verify(case, tmp_path / "merged", torch.bfloat16)
    assert 1e-4 < result.max_difference < result.tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_layer_left_unmerged_is_found(case: Case, tmp_path: Path, dtype: str):
    merge_case(case, tmp_path / "merged", dtype=dtype)
    name = "model.layers.1.mlp.down_proj.weight"
    file, stored = tmp_path / "merged" / "model.safetensors", getattr(torch, dtype)
    tensors = load_file(file)
    tensors[name] = load_file(tmp_path / "base" / "model.safetensors")[name].to(stored)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(RunError, match="does not match base plus adapter: largest logit difference"):
        verify(case, tmp_path / "merged", stored)


def test_a_tokenizer_that_cuts_otherwise_is_found(case: Case, tmp_path: Path):
    merge_case(case, tmp_path / "merged")
    file = tmp_path / "merged" / "tokenizer.json"
    file.write_text(file.read_text().replace('"ignore_merges": false', '"ignore_merges": true').replace("Ġ", "Ċ"))
    with pytest.raises(RunError, match="does not tokenise like the one used in training"):
        verify(case, tmp_path / "merged", torch.float32)
