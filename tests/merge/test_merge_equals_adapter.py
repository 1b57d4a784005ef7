"""The merged model computes what the adapter computes, for every kind of adapter the toolkit trains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Case, logits_of_folder, merged_by_peft
from safetensors.torch import load_file

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.model import ModelConfig
from toolkit.merge.merge import MergeReport, merge_adapter

MakeBase = Callable[..., ModelConfig]
MakeCase = Callable[..., Case]
NEW_TOKENS = ("<tool>", "<plan>", "<draft>", "<a>", "<b>", "<c>")


def merge(case: Case, output: Path, **keywords: Any) -> MergeReport:
    return merge_adapter(case.base, case.adapter, output, chat=case.chat, **keywords)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def require_same(case: Case, output: Path) -> None:
    torch.testing.assert_close(logits_of_folder(output, case.ids), case.logits, atol=1e-4, rtol=0)


def require_same_as_peft(case: Case, output: Path) -> None:
    ours, theirs = weights(output), merged_by_peft(case)
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-6, rtol=1e-5)
    assert theirs.keys() - ours.keys() <= {"lm_head.weight"}


BOTH = ["embed_tokens", "lm_head"]
CASES = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "ranks_of_their_own": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"down_proj": 1}},
    "vocabulary_saved_in_full": {"modules_to_save": BOTH, "ensure_weight_tying": True},
    "some_token_rows": {"trainable_token_indices": {"embed_tokens": [5, 7]}},
    "some_token_rows_of_both": {"trainable_token_indices": {"embed_tokens": [5, 7], "lm_head": [5, 7]}},
    "norms_saved_in_full": {"modules_to_save": ["input_layernorm"]},
}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("lora", CASES.values(), ids=CASES)
def test_merged_logits_and_weights_equal_those_of_peft(
    make_base: MakeBase, make_case: MakeCase, tmp_path: Path, lora: dict[str, Any], tied: bool
):
    case = make_case(make_base(tied=tied), **lora)
    report = merge(case, tmp_path / "merged")
    require_same(case, tmp_path / "merged")
    require_same_as_peft(case, tmp_path / "merged")
    assert report.tied is tied
    assert report.files > 2


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
        {"modules_to_save": BOTH},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"trainable_token_indices": {"embed_tokens": [5], "lm_head": [7]}},
    ],
    ids=str,
)
def test_embedding_and_head_that_were_trained_apart_come_out_as_two_matrices(
    make_base: MakeBase, make_case: MakeCase, tmp_path: Path, lora: dict[str, Any], tied: bool
):
    case = make_case(make_base(tied=tied), **lora)
    report = merge(case, tmp_path / "merged")
    require_same(case, tmp_path / "merged")
    assert not report.tied
    assert config_of(tmp_path / "merged")["tie_word_embeddings"] is False
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= weights(tmp_path / "merged").keys()


def test_a_lora_that_peft_keeps_tied_stays_one_matrix(make_base: MakeBase, make_case: MakeCase, tmp_path: Path):
    case = make_case(make_base(tied=True), target_modules=["embed_tokens"], ensure_weight_tying=True)
    assert merge(case, tmp_path / "merged").tied
    require_same(case, tmp_path / "merged")
    assert "lm_head.weight" not in weights(tmp_path / "merged")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "lora",
    [
        {"trainable_token_indices": lambda ids: {"embed_tokens": ids, "lm_head": ids}},
        {"modules_to_save": BOTH, "ensure_weight_tying": True},
        {},
    ],
    ids=["rows", "saved_in_full", "frozen"],
)
@pytest.mark.parametrize("rows", [VOCABULARY_ROWS := 280, 300], ids=["grown", "padded"])
def test_tokens_that_the_tokenizer_learnt_have_their_rows(
    make_base: MakeBase, make_case: MakeCase, tmp_path: Path, lora: dict[str, Any], tied: bool, rows: int
):
    base = make_base(tied=tied, chatml=False, rows=rows, added_tokens=NEW_TOKENS)
    case = make_case(base, **lora)
    report = merge(case, tmp_path / "merged")
    # 280 entries, then <|im_start|>, <|im_end|> and six more: 288 rows, unless there were more already.
    assert report.new_tokens == 8
    assert config_of(tmp_path / "merged")["vocab_size"] == max(rows, 288)
    assert weights(tmp_path / "merged")["model.embed_tokens.weight"].shape == (max(rows, 288), 32)
    require_same(case, tmp_path / "merged")
    assert report.tied is tied


@pytest.mark.parametrize("lora", [{}, {"use_dora": True}, {"use_rslora": True}], ids=str)
def test_layers_that_store_their_weight_turned_around_are_merged(
    make_base: MakeBase, make_case: MakeCase, tmp_path: Path, lora: dict[str, Any]
):
    case = make_case(make_base(tied=True, kind="gpt2"), target_modules=["c_attn", "c_proj"], **lora)
    merge(case, tmp_path / "merged")
    require_same(case, tmp_path / "merged")
    require_same_as_peft(case, tmp_path / "merged")


def test_files_of_the_bare_model_without_the_prefix_are_merged(
    make_base: MakeBase, make_case: MakeCase, tmp_path: Path
):
    base = make_base(tied=True, kind="gpt2", shard="10MB")
    file = Path(base.name) / "model.safetensors"
    from safetensors.torch import save_file

    bare = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    save_file(bare, file, metadata={"format": "pt"})
    case = make_case(base, target_modules=["c_attn"])
    merge(case, tmp_path / "merged")
    require_same(case, tmp_path / "merged")
    assert weights(tmp_path / "merged").keys() == bare.keys()


@pytest.mark.parametrize(
    ("shard", "dtype", "wanted", "stored", "files"),
    [
        ("1GB", torch.float32, None, torch.float32, 1),
        ("20KB", torch.bfloat16, None, torch.bfloat16, 9),
        ("20KB", torch.bfloat16, "float32", torch.float32, 9),
        ("20KB", torch.float32, "float16", torch.float16, 18),
    ],
)
def test_weights_keep_the_base_dtype_and_files_or_take_the_dtype_that_is_named(
    make_base: MakeBase,
    make_case: MakeCase,
    tmp_path: Path,
    shard: str,
    dtype: torch.dtype,
    wanted: str | None,
    stored: torch.dtype,
    files: int,
):
    base = make_base(shard=shard, dtype=dtype)
    case = make_case(base)
    merge(case, tmp_path / "merged", dtype=wanted)
    assert {tensor.dtype for tensor in weights(tmp_path / "merged").values()} == {stored}
    names = sorted(file.name for file in (tmp_path / "merged").glob("*.safetensors"))
    assert names == sorted(file.name for file in Path(base.name).glob("*.safetensors"))
    assert len(names) == files
    assert config_of(tmp_path / "merged")["dtype"] == str(stored).removeprefix("torch.")
    # The sum is rounded once: the stored weight is the float32 one, cast.
    ours = weights(tmp_path / "merged")
    torch.testing.assert_close(
        ours["model.layers.0.mlp.up_proj.weight"],
        merged_by_peft(case)["model.layers.0.mlp.up_proj.weight"].to(stored),
        atol=1e-6,
        rtol=torch.finfo(stored).eps,
    )


def test_a_template_of_the_tokenizers_own_stays(make_base: MakeBase, make_case: MakeCase, tmp_path: Path):
    case = make_case(make_base(chatml=False), ChatConfig(template="tokenizer"))
    report = merge(case, tmp_path / "merged")
    assert report.new_tokens == 0
    assert "{{ m.role }}" in (tmp_path / "merged" / "chat_template.jinja").read_text()
    generation = json.loads((tmp_path / "merged" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2]
