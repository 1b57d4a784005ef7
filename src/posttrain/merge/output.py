"""The folder of a merged model, written completely or not at all.

Configs are the base's own JSON with the few keys changed that the merge changes, so that whatever else a model keeps in
there survives.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.base.files import atomic_rename_dir, fsync_tree, why_unwritten
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.chatml import use_trained_template
from posttrain.conversation.encoder import conversation_encoder
from posttrain.errors import ConfigError, RunError, ToolkitError


def check_output(output: Path, *, overwrite: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse a folder that a merge may not write to; nothing is created or removed.

    Raises:
        ConfigError: the folder is not empty and `overwrite` was not asked for, or it is or holds an input.
    """
    if output.is_symlink():  # what it leads to would be replaced, which nobody has named
        raise ConfigError(f"--output: {output} is a link; give the folder itself")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output: {output} is a file; give a folder")
    resolved = output.resolve()
    for path in inputs:
        if path.resolve().is_relative_to(resolved):
            raise ConfigError(f"--output: {output} holds what is to be merged; give another folder")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise ConfigError(
            f"there is something in {output} already; replace it with --overwrite, or give another --output"
        )


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to write to, which takes the place of `output` at the end of the block, and never if it fails.

    No other process may write `output` meanwhile: what one left that was killed is removed.

    Raises:
        RunError: the disk is full.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    aside, old = (output.with_name(f".{output.name}.{kind}.tmp") for kind in ("new", "old"))
    if old.exists() and not output.exists():  # a kill came between the two renames
        atomic_rename_dir(old, output)
    for left in (aside, old):
        if left.exists():
            shutil.rmtree(left)
    aside.mkdir()
    try:
        yield aside
        fsync_tree(aside)
        _replace(output, aside, old)
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else why_unwritten(error)
        if reason is None:
            raise
        raise RunError(
            f"{output} was not written: {reason}; nothing of it is left. Make room, and start again"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _replace(output: Path, aside: Path, old: Path) -> None:
    if not output.is_dir():
        atomic_rename_dir(aside, output)
        return
    atomic_rename_dir(output, old)
    try:
        atomic_rename_dir(aside, output)
    except BaseException:
        if not output.is_dir():  # an interrupt may come when it is there already
            atomic_rename_dir(old, output)
        raise
    shutil.rmtree(old)


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
