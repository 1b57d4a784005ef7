"""Write the folder of a merged model, completely or not at all.

Configs are the base's own JSON, with only the keys changed that the merge affects, so that everything else a model
keeps there survives.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posttrain.base.files import atomic_rename_dir, fsync_tree, why_unwritten
from posttrain.config.sections.chat import ChatConfig
from posttrain.conversation.encoder import conversation_encoder
from posttrain.conversation.saved_template import use_trained_template
from posttrain.errors import ConfigError, RunError, ToolkitError


def check_output(output: Path, *, overwrite: bool, inputs: tuple[Path, ...]) -> None:
    """Refuse an output folder that a merge may not write to; nothing is created or removed.

    Raises:
        ConfigError: it is a link or a file, it is or holds an input, or it is not empty and `overwrite` is not set.
    """
    if output.is_symlink():  # its target would be replaced, which the user has not named
        raise ConfigError(f"--output: {output} is a link; give the folder itself")
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output: {output} is a file; give a folder")
    resolved = output.resolve()
    for path in inputs:
        if path.resolve().is_relative_to(resolved):
            raise ConfigError(f"--output: {output} contains an input of the merge; choose another folder")
    if output.is_dir() and any(output.iterdir()) and not overwrite:
        raise ConfigError(f"{output} is not empty; replace it with --overwrite, or choose another --output")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder to write to, which replaces `output` at the end of the block, but not if the block fails.

    No other process may write `output` meanwhile: the leftovers of a killed one are removed.

    Raises:
        RunError: the folder cannot be written, e.g. because the disk is full.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    aside, old = (output.with_name(f".{output.name}.{kind}.tmp") for kind in ("new", "old"))
    if old.exists() and not output.exists():  # the process was killed between the two renames
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
            f"{output} was not written: {reason}; no partial output is left. Fix that or free some space, and try again"
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
        if not output.is_dir():  # an interrupt may come after the rename
            atomic_rename_dir(old, output)
        raise
    shutil.rmtree(old)


# Code that the config refers to, and files that a licence requires to be passed on.
_CARRIED_OVER = ("*.py", "LICENSE*", "NOTICE*")


def write_model_config(base: Path, output: Path, *, rows: int, dtype: str | None, tied: bool) -> None:
    """Write `config.json` for a vocabulary of `rows` rows; `dtype` None leaves the dtype as it is."""
    config = _read(base / "config.json")
    # A multimodal model keeps its language model's keys in a section of their own.
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    text["vocab_size"] = rows
    for section in (config, text):
        if section is config or "tie_word_embeddings" in section:
            section["tie_word_embeddings"] = tied
        if dtype is not None:
            section.pop("torch_dtype", None)  # the key's name before transformers 5
            section["dtype"] = dtype
    _write(output / "config.json", config)


def write_generation_config(base: Path, output: Path, tokenizer: Any, chat: ChatConfig) -> None:
    """Write `generation_config.json`, whose stop tokens are those that ended a turn in training and the base's own."""
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
    """Write the tokenizer, with all added tokens and the trained chat template; copy the base's code and licences."""
    use_trained_template(tokenizer, chat)
    tokenizer.save_pretrained(output)
    for pattern in _CARRIED_OVER:
        for file in base.glob(pattern):
            shutil.copyfile(file, output / file.name)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
