"""Append what was said to files of training data: all of a row or nothing, and never to a file that a run uses."""

import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from posttrain.base.files import atomic_writer, require_file
from posttrain.base.locks import holder_of, own_output
from posttrain.base.strict_json import json_line, parse_object
from posttrain.base.text import as_shown, on_one_line
from posttrain.chat.dialogue import Dialogue
from posttrain.config.load import read_raw
from posttrain.config.strict import folder_of
from posttrain.errors import ConfigError, DataError
from posttrain.inference.answering.partial import plain_messages
from posttrain.runs.directory import RunDirectory

_LONGEST_ROW = 16 * 2**20


def conversation_row(dialogue: Dialogue) -> dict[str, Any]:
    """The conversation as a row for toolkit-sft; DataError if its last answer cannot be trained on."""
    if fault := dialogue.last.answer.fault:
        raise DataError(f"the last answer cannot be trained on: {fault}; /regen or /undo it first")
    return {"messages": plain_messages(dialogue.whole())}


def preference_row(dialogue: Dialogue, chosen: int, rejected: int) -> dict[str, Any]:
    """Two answers to the last question as a row for toolkit-dpo, by their numbers from 0.

    Raises:
        DataError: one of them cannot be trained on, or both are the same.
    """
    answers = dialogue.last.answers
    for number in (chosen, rejected):
        if fault := answers[number].fault:
            raise DataError(f"answer {number + 1} cannot be trained on: {fault}")
    if answers[chosen].text == answers[rejected].text:
        raise DataError(f"answers {chosen + 1} and {rejected + 1} are the same")
    sides = {"chosen": chosen, "rejected": rejected}
    # Messages rather than text: a text that looks like JSON would be read as messages.
    said = {side: [{"role": "assistant", "content": answers[number].text}] for side, number in sides.items()}
    return {"prompt": plain_messages(dialogue.prompt()), **said}


def append_row(path: Path, row: dict[str, Any], output_dirs: Iterable[Path]) -> None:
    """Append a row; a reader sees the file without it or with all of it.

    Args:
        output_dirs: where runs may be training with the file.

    Raises:
        ConfigError: the file's name does not end in .jsonl, a run or another process uses it, or it cannot be written.
        DataError: it ends with something else than rows of this kind.
    """
    if path.suffix != ".jsonl":
        raise ConfigError(f"{as_shown(path)}: the name of a file of rows ends in .jsonl")
    for user in users_of(path, output_dirs):
        raise ConfigError(f"{as_shown(path)} is in use: {user}; give another file")
    with own_output(path):
        try:
            exists = path.exists()
            if exists:
                require_file(path)
                _require_rows_like(path, row)
            with atomic_writer(path) as file:
                if exists:
                    with path.open("rb") as before:
                        shutil.copyfileobj(before, file)
                    os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
                file.write(json_line(row))
        except OSError as error:
            raise ConfigError(f"{as_shown(path)} cannot be written: {error.strerror or error}") from None


def users_of(path: Path, output_dirs: Iterable[Path]) -> Iterator[str]:
    """Each run that is training now and whose config names the file."""
    wanted = os.path.realpath(path)
    for folder in output_dirs:
        for lock in sorted(folder.glob("*/.lock")):
            run = RunDirectory(lock.parent)
            if (holder := holder_of(lock)) is None or not run.config.is_file():
                continue
            if wanted in _files_named_in(run.config):
                yield f"the run in {on_one_line(str(run.path))} trains with it ({holder})"


def _files_named_in(config: Path, *, follow: bool = True) -> Iterator[str]:
    """The real paths of files that a config may name, and those that its dataserver's config names."""
    for text in _texts(read_raw(config)):
        path = folder_of(text, config.parent) / text
        if path.suffix in (".yaml", ".yml") and follow and path.is_file():
            yield from _files_named_in(path, follow=False)
        elif path.suffix:
            yield os.path.realpath(path)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _require_rows_like(path: Path, row: dict[str, Any]) -> None:
    """Raise DataError unless the file is empty or its last line is a whole row with the same keys."""
    last = _last_line(path)
    if not last:
        return
    if not last.endswith(b"\n"):
        raise DataError(f"{as_shown(path)} ends in the middle of a line; repair it, or give another file")
    try:
        found: Sequence[str] = list(parse_object(last))
    except DataError as error:
        raise DataError(f"{as_shown(path)} is not a file of rows: its last line is {error}") from None
    if set(found) != set(row):
        raise DataError(
            f"{as_shown(path)} has rows of another kind: {', '.join(map(on_one_line, found[:5]))} instead of "
            f"{', '.join(row)}; give another file"
        )


def _last_line(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_ROW))
        return (file.read().splitlines(keepends=True) or [b""])[-1]
