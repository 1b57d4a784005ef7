"""A `.gguf` file is converted to an ordinary model folder, once."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.messages import Conversation, Message
from posttrain.errors import ModelError
from posttrain.models.gguf import converted_folder
from posttrain.models.hf import HfBackend
from posttrain.models.location import locate_model

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", "ab", "cd", "<begin>", "<end>", "<pad>", "<unknown>"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTTRAIN_TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"


def write_gguf(path: Path, seed: int = 0, without: str = "", tokens: list[str] = LETTERS) -> Path:
    """Write a float32 Llama of one layer with 32 tokens; `without` names a tensor to leave out.

    A token list that begins with "▁" is a SentencePiece vocabulary, any other a byte-level one.
    """
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama" if tokens[0] == "▁" else "gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(["a b", "c d"])
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_unk_token_id(31)
    writer.add_bos_token_id(28)
    writer.add_eos_token_id(29)
    writer.add_pad_token_id(30)
    random = np.random.default_rng(seed)
    shapes = {
        "token_embd": (32, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        **{f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")},
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        if name != without:
            writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_holds_the_files_own_weights_in_bfloat16(tmp_path):
    folder = converted_folder(write_gguf(tmp_path / "small.gguf"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype is torch.bfloat16
    expected = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    embedding = model.get_input_embeddings().weight
    assert torch.equal(embedding, torch.from_numpy(expected).to(torch.bfloat16))
    assert torch.isfinite(model(input_ids=torch.tensor([[0, 1]])).logits).all()


def test_the_special_tokens_are_those_that_the_file_names(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(converted_folder(write_gguf(tmp_path / "small.gguf")))
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == ("<begin>", "<end>", "<pad>")
    assert tokenizer("abca", add_special_tokens=False)["input_ids"] == [26, 2, 0]


def tokenizer_files(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of tokenizer.json and tokenizer_config.json."""
    names = ("tokenizer.json", "tokenizer_config.json")
    whole, settings = (json.loads((folder / name).read_text(encoding="utf-8")) for name in names)
    return whole, settings


def test_the_tokenizer_of_a_byte_level_file_is_written_as_one(tmp_path):
    whole, settings = tokenizer_files(converted_folder(write_gguf(tmp_path / "small.gguf")))
    assert whole["model"]["byte_fallback"] is False
    assert whole["decoder"]["type"] == "ByteLevel"
    assert settings["clean_up_tokenization_spaces"] is False


def test_the_tokenizer_of_a_sentencepiece_file_keeps_its_fallback_to_bytes(tmp_path):
    pieces = ["▁", *LETTERS[:23], "<0xC3>", "<0xA9>", *LETTERS[-6:]]
    folder = converted_folder(write_gguf(tmp_path / "small.gguf", tokens=pieces))
    assert tokenizer_files(folder)[0]["model"]["byte_fallback"] is True
    # é is the bytes C3 and A9, tokens 24 and 25.
    assert AutoTokenizer.from_pretrained(folder)("é", add_special_tokens=False)["input_ids"][-2:] == [24, 25]


def test_a_file_is_converted_once(tmp_path, cache, caplog):
    caplog.set_level(logging.INFO, logger="posttrain")
    file = write_gguf(tmp_path / "small.gguf")
    first = converted_folder(file)
    times = {path.name: path.stat().st_mtime_ns for path in first.iterdir()}
    assert converted_folder(file) == first
    assert {path.name: path.stat().st_mtime_ns for path in first.iterdir()} == times
    assert list(cache.iterdir()) == [first]
    assert [record.getMessage() for record in caplog.records] == [f"converting small.gguf once into {first}"]


def test_another_content_under_the_same_name_is_another_folder(tmp_path, cache):
    first = converted_folder(write_gguf(tmp_path / "small.gguf"))
    second = converted_folder(write_gguf(tmp_path / "small.gguf", seed=1))
    assert first != second
    assert sorted(cache.iterdir()) == sorted([first, second])


def _text(whole: bytes) -> bytes:
    return b"this is no model"


def _nothing(whole: bytes) -> bytes:
    return b""


def _only_the_start(whole: bytes) -> bytes:
    return whole[:100]


def _half_of_the_header(whole: bytes) -> bytes:
    return whole[:600]


def _without_the_last_tensor(whole: bytes) -> bytes:
    return whole[:-5000]


def _another_version(whole: bytes) -> bytes:
    return whole[:4] + b"\x63" + whole[5:]


def _a_huge_count(whole: bytes) -> bytes:
    return whole[:8] + b"\xff" * 8 + whole[16:]


DAMAGES = [
    _text,
    _nothing,
    _only_the_start,
    _half_of_the_header,
    _without_the_last_tensor,
    _another_version,
    _a_huge_count,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_in_one_line_and_leaves_nothing_behind(tmp_path, cache, damage):
    whole = write_gguf(tmp_path / "small.gguf").read_bytes()
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(damage(whole))
    with pytest.raises(ModelError, match=r"^model\.name: cannot read .*broken\.gguf: [^\n]+$"):
        converted_folder(broken)
    assert list(cache.iterdir()) == []


def test_a_file_that_lacks_a_tensor_is_not_completed_with_random_numbers(tmp_path, cache):
    file = write_gguf(tmp_path / "small.gguf", without="blk.0.ffn_up")
    with pytest.raises(ModelError, match=r"lacks 1 of its weights, such as model\.layers\.0\.mlp\.up_proj\.weight"):
        converted_folder(file)
    assert list(cache.iterdir()) == []


def test_the_packaged_models_ids_are_those_that_transformers_reads_from_the_file(smollm2_folder):
    file = Path(locate_model("smollm2-135m-instruct").path)
    read: Any = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    mended: Any = AutoTokenizer.from_pretrained(smollm2_folder)
    whole, settings = tokenizer_files(smollm2_folder)
    assert (whole["model"]["byte_fallback"], settings["clean_up_tokenization_spaces"]) == (False, False)
    # The first 12,288 characters, including control characters that the vocabulary cannot spell.
    texts = [f"a {chr(letter)}b" for letter in range(0x3000)]
    texts += ["<|im_start|>user\nIs n't it  x , y ?<|im_end|>\n", "def f(x):\n\treturn 1234567", "▁円の面積 😀\r\n"]
    ids = mended(texts)["input_ids"]
    assert ids == read(texts)["input_ids"]
    assert [mended.decode(each) for each in ids] == [
        read.decode(each, clean_up_tokenization_spaces=False) for each in ids
    ]


def test_the_packaged_model_knows_the_capital_of_france(smollm2_folder):
    loaded = HfBackend().load_for_inference(ModelConfig(name=str(smollm2_folder)), None, chatml=True)
    tokenizer = loaded.tokenizer
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert loaded.model.config.eos_token_id == tokenizer.eos_token_id == 2
    assert loaded.new_token_ids == ()
    encoder = conversation_encoder(ChatConfig(), tokenizer)
    prompt = encoder.prompts([Conversation((Message("user", "What is the capital of France?"),))])[0]
    with torch.no_grad():
        answer = loaded.model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1].item() in encoder.end_ids
