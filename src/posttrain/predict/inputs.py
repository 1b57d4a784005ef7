"""Read and check input files, and encode their prompts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.text import as_shown
from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig, OnBadRecord
from posttrain.conversation.chatml import render
from posttrain.conversation.encoder import ConversationEncoder
from posttrain.conversation.messages import Conversation
from posttrain.data.sources import SHOWN_FAULTS, open_source
from posttrain.errors import ConfigError, DataError


@dataclass(frozen=True)
class Row:
    """One prompt, and its reference answer if the data hold one.

    Attributes:
        index: its position among the usable rows of its file, from 0; one line may hold several rows.
        reference: the answer as a model would write it; None if the data hold none.
    """

    source: Path
    line: int
    index: int
    prompt: Conversation
    reference: str | None

    @property
    def place(self) -> str:
        return f"{as_shown(self.source)}:{self.line}"


@dataclass(frozen=True)
class Inputs:
    """All rows of all files in order, one line for each row left out, and the files' digests by name."""

    rows: list[Row]
    faults: list[str]
    digests: dict[str, str]


@dataclass(frozen=True)
class Room:
    """Length limits, in tokens.

    Attributes:
        max_length: of a training conversation, and so of a prompt.
        max_new_tokens: of an answer.
        positions: of the model's context, prompt and answer together; None if the model names no limit.
    """

    max_length: int
    max_new_tokens: int
    positions: int | None


@dataclass(frozen=True)
class Prompts:
    """The rows that can be answered, the token ids of each, and one line for each row that cannot."""

    rows: list[Row]
    ids: list[list[int]]
    faults: list[str]


def match_files(input_: Path, output: Path) -> dict[Path, Path]:
    """Map each input file to its output: a file for a file, a folder for a folder.

    Raises:
        ConfigError: there is nothing to read, or `output` cannot be written to.
    """
    try:
        return _matched(input_, output)
    except OSError as error:  # e.g. a file name that is too long
        raise ConfigError(f"{as_shown(Path(error.filename or input_))}: {error.strerror or error}") from None


def _matched(input_: Path, output: Path) -> dict[Path, Path]:
    if not input_.exists():
        raise ConfigError(f"there is no file or folder {as_shown(input_)}")
    files = {input_: output}
    if input_.is_dir():
        if output.exists() and not output.is_dir():
            raise ConfigError(f"{as_shown(output)} is a file; if the input is a folder, the output must be one too")
        files = {source: output / source.name for source in sorted(input_.glob("[!.]*.jsonl"))}
        if not files:
            raise ConfigError(f"there is no .jsonl file in {as_shown(input_)}")
    elif output.is_dir():
        raise ConfigError(f"{as_shown(output)} is a folder; if the input is a file, the output must be one too")
    for source, target in files.items():
        if os.path.realpath(source) == os.path.realpath(target):
            raise ConfigError(f"{as_shown(output)} is the input; give the output another name")
    existing = next(parent for parent in output.absolute().parents if parent.exists())
    if not existing.is_dir():
        raise ConfigError(f"{as_shown(output)} cannot be written: {as_shown(existing)} is a file, not a folder")
    return files


def skipped_files(input_: Path) -> list[str]:
    """Names in an input folder that are not read."""
    if not input_.is_dir():
        return []
    return sorted(path.name for path in input_.iterdir() if path.suffix != ".jsonl" and not path.name.startswith("."))


def read_inputs(files: Sequence[Path], columns: ColumnsConfig, on_bad_record: OnBadRecord) -> Inputs:
    """Read and check every file; DataError lists the faults of all of them."""
    rows: list[Row] = []
    faults: list[str] = []
    digests: dict[str, str] = {}
    problems: list[str] = []
    for file in files:
        try:
            source = open_source(DatasetConfig(path=str(file), columns=columns))
            records = source.read(on_bad_record, require_answer=False)
        except DataError as error:
            problems.append(str(error))
            continue
        digests[file.name] = records.digest
        faults += records.faults
        rows += [Row(file, record.line, record.index, *_asked(record.conversation)) for record in records.records]
    if problems:
        raise DataError("\n".join(problems))
    return Inputs(rows, faults, digests)


def _asked(conversation: Conversation) -> tuple[Conversation, str | None]:
    """The conversation up to the answer to generate, and the reference answer if the data hold one."""
    *before, last = conversation.messages
    if last.role != "assistant":
        return conversation, None
    # The segments of a turn are <|im_start|>, its header, its content, <|im_end|> and a newline.
    return Conversation(tuple(before), conversation.tools), render(Conversation((last,)))[2].text


def encode_prompts(
    rows: Sequence[Row], encoder: ConversationEncoder, room: Room, on_bad_record: OnBadRecord
) -> Prompts:
    """Encode the prompt of each row.

    Raises:
        DataError: a row cannot be answered and `on_bad_record` is error, or no row can be answered.
    """
    prompts = Prompts([], [], [])
    encoded = iter(_encode([row for row in rows if row.prompt.messages], encoder))
    for row in rows:
        ids = next(encoded) if row.prompt.messages else "there is no prompt before the answer"
        fault = ids if isinstance(ids, str) else _too_long(len(ids), room)
        if fault:
            prompts.faults.append(f"{row.place}: {fault}")
        elif not isinstance(ids, str):
            prompts.rows.append(row)
            prompts.ids.append(ids)
    if prompts.faults and (on_bad_record == "error" or not prompts.rows):
        raise DataError(_refusal(prompts))
    return prompts


def first_faults(faults: Sequence[str]) -> list[str]:
    """The first faults, as many as are shown, and how many more there are."""
    more = len(faults) - SHOWN_FAULTS
    return [*faults[:SHOWN_FAULTS], *([f"... and {more} more"] if more > 0 else [])]


def _encode(rows: Sequence[Row], encoder: ConversationEncoder) -> Sequence[list[int] | str]:
    """Token ids of each prompt, or why it has none; all at once, or one by one to find the row at fault."""
    try:
        return encoder.prompts([row.prompt for row in rows])
    except DataError as error:
        return [str(error)] if len(rows) == 1 else [ids for row in rows for ids in _encode([row], encoder)]


def _too_long(length: int, room: Room) -> str | None:
    if length > room.max_length:
        return f"the prompt has {length} tokens, more than chat.max_length: {room.max_length}"
    if room.positions is not None and length + room.max_new_tokens > room.positions:
        return (
            f"the prompt has {length} tokens; with generation.max_new_tokens: {room.max_new_tokens} that exceeds the "
            f"model's {room.positions} positions"
        )
    return None


def _refusal(prompts: Prompts) -> str:
    count = len(prompts.faults)
    head = f"{count} rows cannot be answered:" if count > 1 else "a row cannot be answered:"
    advice = "correct them, or skip them with on_bad_record: skip" if prompts.rows else "no rows are left"
    return "\n".join([head, *(f"  {line}" for line in first_faults(prompts.faults)), advice])
