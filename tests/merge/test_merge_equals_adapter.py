"""The merged model computes what the adapter computes, for every kind of adapter."""

from pathlib import Path
from typing import Any

import pytest
import torch
from merge_cases import (
    Case,
    file_names,
    json_of,
    logits_of_folder,
    make_base,
    make_case,
    merge_case,
    merged_by_peft,
    weights,
)
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
BOTH = ["embed_tokens", "lm_head"]
NEW_TOKENS = ("<tool>", "<plan>", "<draft>", "<a>", "<b>", "<c>")
TIED = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])

# With each of these, embedding and head stay one matrix if they are tied in the base.
KEEPS_TIED = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "ranks_and_scales_of_their_own": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 1}},
    "vocabulary_saved_in_full": {"modules_to_save": BOTH, "ensure_weight_tying": True},
    "some_token_rows": {"trainable_token_indices": {"embed_tokens": [5, 7]}},
    "norms_saved_in_full": {"modules_to_save": ["input_layernorm"]},
}

# With each of these they become two matrices.
TRAINS_APART = {
    "lora_on_embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "lora_on_head": {"target_modules": ["q_proj", "lm_head"]},
    "lora_on_both": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "dora_on_embedding": {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
    "both_in_full": {"modules_to_save": BOTH},
    "embedding_in_full": {"modules_to_save": ["embed_tokens"]},
    "head_in_full": {"modules_to_save": ["lm_head"]},
    "different_token_rows": {"trainable_token_indices": {"embed_tokens": [5], "lm_head": [7]}},
}


def require_same_logits(case: Case, merged: Path) -> None:
    torch.testing.assert_close(logits_of_folder(merged, case.ids), case.logits, atol=1e-4, rtol=0)


def require_same_as_peft(case: Case, merged: Path) -> None:
    ours, theirs = weights(merged), merged_by_peft(case)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-6, rtol=1e-5)
    # A state dict lists a tied matrix twice.
    assert theirs.keys() - ours.keys() <= {HEAD}


@TIED
@pytest.mark.parametrize("lora", KEEPS_TIED.values(), ids=KEEPS_TIED)
def test_merged_logits_and_weights_equal_those_of_peft(tmp_path: Path, lora: dict[str, Any], tied: bool):
    merged = tmp_path / "merged"
    case = make_case(make_base(tmp_path / "base", tied=tied), tmp_path / "adapter", **lora)
    report = merge_case(case, merged)
    require_same_logits(case, merged)
    require_same_as_peft(case, merged)
    assert report.tied is tied
    assert report.files == len(list(merged.glob("*.safetensors"))) > 2


@TIED
@pytest.mark.parametrize("lora", TRAINS_APART.values(), ids=TRAINS_APART)
def test_embedding_and_head_that_were_trained_apart_are_two_matrices(tmp_path: Path, lora: dict[str, Any], tied: bool):
    merged = tmp_path / "merged"
    case = make_case(make_base(tmp_path / "base", tied=tied), tmp_path / "adapter", **lora)
    report = merge_case(case, merged)
    require_same_logits(case, merged)
    assert not report.tied
    assert json_of(merged / "config.json")["tie_word_embeddings"] is False
    assert {EMBEDDING, HEAD} <= weights(merged).keys()
    # On a tied base PEFT's own merge adds the LoRA of either matrix to both, so it is no reference there.
    if not tied:
        require_same_as_peft(case, merged)


def test_a_lora_that_is_tied_by_peft_stays_one_matrix(tmp_path: Path):
    base = make_base(tmp_path / "base", tied=True)
    case = make_case(base, tmp_path / "adapter", target_modules=["embed_tokens"], ensure_weight_tying=True)
    assert merge_case(case, tmp_path / "merged").tied
    require_same_logits(case, tmp_path / "merged")
    assert HEAD not in weights(tmp_path / "merged")


@TIED
@pytest.mark.parametrize(
    "lora",
    [
        {"trainable_token_indices": lambda ids: {"embed_tokens": ids, "lm_head": ids}},
        {"modules_to_save": BOTH, "ensure_weight_tying": True},
        {},
    ],
    ids=["rows_trained", "all_trained", "frozen"],
)
@pytest.mark.parametrize("rows", [280, 300], ids=["grown", "padded"])
def test_tokens_that_the_tokenizer_learnt_have_their_rows(tmp_path: Path, lora: dict[str, Any], tied: bool, rows: int):
    merged = tmp_path / "merged"
    base = make_base(tmp_path / "base", tied=tied, chatml=False, rows=rows, added_tokens=NEW_TOKENS)
    case = make_case(base, tmp_path / "adapter", **lora)
    report = merge_case(case, merged)
    # 280 entries, <|im_start|>, <|im_end|> and the six new tokens: 288 rows, unless there are more already.
    assert report.new_tokens == 8
    assert json_of(merged / "config.json")["vocab_size"] == max(rows, 288)
    assert weights(merged)[EMBEDDING].shape == (max(rows, 288), 32)
    assert report.tied is tied
    require_same_logits(case, merged)


@pytest.mark.parametrize("lora", [{}, {"use_dora": True}, {"use_rslora": True}], ids=["plain", "dora", "rslora"])
def test_layers_that_store_their_weight_turned_around_are_merged(tmp_path: Path, lora: dict[str, Any]):
    base = make_base(tmp_path / "base", tied=True, kind="gpt2")
    case = make_case(base, tmp_path / "adapter", target_modules=["c_attn", "c_proj"], **lora)
    merge_case(case, tmp_path / "merged")
    require_same_logits(case, tmp_path / "merged")
    require_same_as_peft(case, tmp_path / "merged")


def test_files_without_the_prefix_of_the_model_with_a_head_are_merged(tmp_path: Path):
    base = make_base(tmp_path / "base", tied=True, kind="gpt2", shard="1GB")
    file = tmp_path / "base" / "model.safetensors"
    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file(bare, file, metadata={"format": "pt"})
    case = make_case(base, tmp_path / "adapter", target_modules=["c_attn"])
    merge_case(case, tmp_path / "merged")
    require_same_logits(case, tmp_path / "merged")
    assert weights(tmp_path / "merged").keys() == bare.keys()


@pytest.mark.parametrize(
    ("shard", "dtype", "wanted", "stored"),
    [
        ("1GB", torch.float32, None, torch.float32),
        ("20KB", torch.bfloat16, None, torch.bfloat16),
        ("20KB", torch.bfloat16, "float32", torch.float32),
        ("1GB", torch.float32, "float16", torch.float16),
    ],
)
def test_the_base_keeps_its_files_and_its_dtype_or_gets_the_one_that_is_named(
    tmp_path: Path, shard: str, dtype: torch.dtype, wanted: str | None, stored: torch.dtype
):
    merged = tmp_path / "merged"
    case = make_case(make_base(tmp_path / "base", shard=shard, dtype=dtype), tmp_path / "adapter")
    merge_case(case, merged, dtype=wanted)
    ours = weights(merged)
    assert {tensor.dtype for tensor in ours.values()} == {stored}
    assert json_of(merged / "config.json")["dtype"] == str(stored).removeprefix("torch.")
    assert file_names(merged.glob("*.safetensors*")) == file_names((tmp_path / "base").glob("*.safetensors*"))
    # Rounded once: summed in float32, then cast.
    for name, tensor in merged_by_peft(case).items():
        torch.testing.assert_close(ours[name], tensor.to(stored), atol=1e-6, rtol=torch.finfo(stored).eps)


def test_a_merged_float16_weight_beyond_its_range_is_refused(tmp_path: Path):
    base = make_base(tmp_path / "base", shard="1GB")
    file = tmp_path / "base" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.norm.weight"][0] = 1e5
    save_file(tensors, file, metadata={"format": "pt"})
    case = make_case(base, tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"model\.norm\.weight holds values beyond float16's range"):
        merge_case(case, tmp_path / "merged", dtype="float16")
