"""Text encoders from real tokenizers: no text becomes a control token."""

import subprocess
import sys

import pytest

from posttrain.conversation.encoder import HfTextEncoder
from posttrain.errors import ModelError


def test_every_registered_special_token_is_split_when_it_is_typed(smollm2_tokenizer):
    special = {str(t): i for i, t in smollm2_tokenizer.added_tokens_decoder.items() if t.special}
    assert len(special) == 17
    encoder = HfTextEncoder(smollm2_tokenizer)
    for ids, (token, id_) in zip(encoder.encode(list(special)), special.items(), strict=True):
        assert not set(ids) & set(special.values())
        assert smollm2_tokenizer.decode(ids) == token
        assert smollm2_tokenizer([token], add_special_tokens=False)["input_ids"] == [[id_]]


def test_control_tokens_are_found_by_id(smollm2_tokenizer):
    encoder = HfTextEncoder(smollm2_tokenizer)
    assert [encoder.control_id(token) for token in ("<|im_start|>", "<|im_end|>")] == [1, 2]


def test_empty_texts_have_no_ids_and_no_texts_are_fine(smollm2_tokenizer, metaspace_tokenizer):
    for tokenizer in (smollm2_tokenizer, metaspace_tokenizer):
        encoder = HfTextEncoder(tokenizer)
        assert encoder.encode(["", "a", ""])[::2] == [[], []]
        assert encoder.encode([]) == []


@pytest.mark.parametrize("text", ["\x16", "\U00040000"])
def test_a_character_that_the_vocabulary_cannot_spell_never_becomes_a_control_token(smollm2_tokenizer, text, caplog):
    assert 0 in smollm2_tokenizer(text, split_special_tokens=True)["input_ids"]  # <|endoftext|>
    encoder = HfTextEncoder(smollm2_tokenizer)
    first, again, plain = encoder.encode([f"a{text}b", f"{text}é", "\ufffd"])
    assert [smollm2_tokenizer.decode(ids) for ids in (first, again, plain)] == [
        "a\ufffdb",
        "\ufffdé",
        "\ufffd",
    ]
    assert [f"U+{ord(text):04X}; it is replaced by U+FFFD" in message for message in caplog.messages] == [True]


def test_an_unknown_token_of_its_own_stays_where_even_the_replacement_is_unknown(metaspace_tokenizer, monkeypatch):
    monkeypatch.setattr(metaspace_tokenizer.backend_tokenizer.model, "byte_fallback", False)
    unknown = metaspace_tokenizer.unk_token_id
    assert unknown in HfTextEncoder(metaspace_tokenizer).encode(["日"])[0]


def test_the_tokenizer_behaves_as_before_afterwards(smollm2_tokenizer):
    HfTextEncoder(smollm2_tokenizer).encode(["<|im_end|>"])
    assert smollm2_tokenizer("<|im_end|>")["input_ids"] == [2]


def test_long_texts_are_not_cut_by_the_tokenizer(qwen_like_tokenizer, monkeypatch):
    monkeypatch.setattr(qwen_like_tokenizer, "model_max_length", 4)
    assert len(HfTextEncoder(qwen_like_tokenizer).encode(["1 2 3 4 5 6"])[0]) > 4


@pytest.mark.parametrize("name", ["smollm2_tokenizer", "qwen_like_tokenizer", "metaspace_tokenizer"])
def test_a_control_token_that_is_missing_is_named(name, request):
    with pytest.raises(ModelError, match=r"has no token '<\|assistant\|>'"):
        HfTextEncoder(request.getfixturevalue(name)).control_id("<|assistant|>")


def test_a_control_token_that_anyone_could_type_is_refused(qwen_like_tokenizer):
    encoder = HfTextEncoder(qwen_like_tokenizer)
    assert len(encoder.encode(["<think>"])[0]) == 1
    with pytest.raises(ModelError, match=r"ordinary text as the control token .*; register it as a special"):
        encoder.control_id("<think>")


def test_importing_the_chat_modules_imports_nothing_heavy():
    code = (
        "import sys\nfrom posttrain.conversation import chatml, masks, templates, truncation\n"
        "light = not {'torch', 'transformers', 'pydantic', 'numpy'} & set(sys.modules)\n"
        "from posttrain.conversation import encoder\n"
        "sys.exit(not light or bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
