"""The files around the weights: config, generation config, tokenizer with its chat template.

Configs are the base's own JSON with the few keys changed that the merge changes, so that whatever else a model
keeps in there survives.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chat_template import use_trained_template
from posttrain.conversation.encoder import conversation_encoder

# Code that the config refers to, and what a licence asks to be passed on.
_CARRIED_OVER = ("*.py", "LICENSE*", "NOTICE*")


def write_model_config(base: Path, output: Path, *, rows: int, dtype: str | None, tied: bool) -> None:
    """`config.json` for a vocabulary of `rows` rows; `dtype` None leaves the dtype as it is."""
    config = _read(base / "config.json")
    # A model with more than text keeps its language model's keys in a section of their own.
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    text["vocab_size"] = rows
    for section in (config, text):
        if section is config or "tie_word_embeddings" in section:
            section["tie_word_embeddings"] = tied
        if dtype is not None:
            section.pop("torch_dtype", None)  # what the key was called before transformers 5
            section["dtype"] = dtype
    _write(output / "config.json", config)


def write_generation_config(base: Path, output: Path, tokenizer: Any, chat: ChatConfig) -> None:
    """`generation_config.json` that stops where the training ended a turn, and where the base stopped."""
    path = base / "generation_config.json"
    config, model = _read(path) if path.is_file() else {}, _read(base / "config.json")
    base_ends = config.get("eos_token_id", model.get("eos_token_id"))
    base_ends = [] if base_ends is None else base_ends if isinstance(base_ends, list) else [base_ends]
    ends = sorted(conversation_encoder(chat, tokenizer).end_ids)
    config["eos_token_id"] = list(dict.fromkeys([*ends, *base_ends]))
    config["pad_token_id"] = tokenizer.pad_token_id
    if config.get("bos_token_id", model.get("bos_token_id")) is not None:
        config.setdefault("bos_token_id", model.get("bos_token_id"))
    _write(output / "generation_config.json", config)


def write_tokenizer(base: Path, output: Path, tokenizer: Any, chat: ChatConfig) -> None:
    """The tokenizer with all added tokens; its chat template is the one that was trained."""
    use_trained_template(tokenizer, chat)
    tokenizer.save_pretrained(output)
    for pattern in _CARRIED_OVER:
        for file in base.glob(pattern):
            shutil.copyfile(file, output / file.name)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
