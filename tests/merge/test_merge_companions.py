"""The files next to the merged weights, which programs that do not know the toolkit rely on."""

from pathlib import Path

import pytest
import torch
from merge_cases import json_of, make_base, make_case, merge_case
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import render, text
from posttrain.conversation.messages import parse_conversation

MESSAGES = [{"role": "user", "content": "the question"}, {"role": "assistant", "content": "the answer"}]


def test_the_tokenizer_keeps_the_tokens_it_learnt_and_speaks_chatml(tmp_path: Path):
    chat = ChatConfig(default_system="Be brief.")
    base = make_base(tmp_path / "base", chatml=False, added_tokens=("<tool>",))
    merge_case(make_case(base, tmp_path / "adapter", chat), tmp_path / "merged")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert len(tokenizer) == 283
    assert tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>", "<tool>"]) == [280, 281, 282]
    expected = text(render(parse_conversation(MESSAGES), default_system="Be brief."))
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == expected
    ids = tokenizer.apply_chat_template(MESSAGES, return_dict=False)
    assert (ids[0], ids.count(280), ids.count(281)) == (280, 3, 3)


def test_generation_stops_where_training_ended_a_turn_and_where_the_base_stopped(tmp_path: Path):
    merge_case(make_case(make_base(tmp_path / "base", chatml=False), tmp_path / "adapter"), tmp_path / "merged")
    generation = json_of(tmp_path / "merged" / "generation_config.json")
    # 281 is <|im_end|>, 2 is the base's </s>, 0 its <pad>.
    assert (generation["eos_token_id"], generation["pad_token_id"], generation["bos_token_id"]) == ([281, 2], 0, 1)


def test_a_base_without_a_generation_config_gets_one(tmp_path: Path):
    base = make_base(tmp_path / "base")
    (tmp_path / "base" / "generation_config.json").unlink()
    merge_case(make_case(base, tmp_path / "adapter"), tmp_path / "merged")
    generation = json_of(tmp_path / "merged" / "generation_config.json")
    assert generation == {"eos_token_id": [4, 2], "pad_token_id": 0, "bos_token_id": 1}


def test_with_the_tokenizers_own_template_nothing_is_learnt_and_it_stays(tmp_path: Path):
    chat = ChatConfig(template="tokenizer")
    base = make_base(tmp_path / "base", chatml=False)
    assert merge_case(make_case(base, tmp_path / "adapter", chat), tmp_path / "merged").new_tokens == 0
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.apply_chat_template(MESSAGES, tokenize=False) == "user: the question</s>assistant: the answer</s>"
    assert json_of(tmp_path / "merged" / "generation_config.json")["eos_token_id"] == [2]


def test_keys_of_the_base_config_that_merging_does_not_touch_stay(tmp_path: Path):
    base = make_base(tmp_path / "base", tied=True)
    merge_case(make_case(base, tmp_path / "adapter"), tmp_path / "merged")
    assert json_of(tmp_path / "merged" / "config.json") == json_of(tmp_path / "base" / "config.json")


def test_licence_and_code_of_the_base_go_along(tmp_path: Path):
    base = make_base(tmp_path / "base")
    for name in ("LICENSE", "modeling_own.py"):
        (tmp_path / "base" / name).write_text(name)
    merge_case(make_case(base, tmp_path / "adapter"), tmp_path / "merged")
    assert (tmp_path / "merged" / "LICENSE").read_text() == "LICENSE"
    assert (tmp_path / "merged" / "modeling_own.py").is_file()


@pytest.mark.parametrize("shard", ["20KB", "1GB"])
def test_the_folder_loads_without_a_missing_or_unexpected_tensor(tmp_path: Path, shard: str):
    base = make_base(tmp_path / "base", shard=shard, tied=True, dtype=torch.bfloat16)
    merge_case(make_case(base, tmp_path / "adapter"), tmp_path / "merged")
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert model.dtype is torch.bfloat16
    # The index counts the bytes of all tensors, as `save_pretrained` does.
    if shard == "20KB":
        ours, theirs = (json_of(tmp_path / name / "model.safetensors.index.json") for name in ("merged", "base"))
        assert ours["weight_map"] == theirs["weight_map"]
        assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]
