"""Read and check input files."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.base.text import as_shown, as_url
from posttrain.config.sections.datasets import ColumnsConfig, DatasetConfig, OnBadRecord
from posttrain.conversation.chatml import render
from posttrain.conversation.messages import Conversation
from posttrain.data.sources import open_source
from posttrain.errors import ConfigError, DataError
from posttrain.inference.answering.rows import Row


@dataclass(frozen=True)
class Inputs:
    """All rows of all files in order, one line for each row left out, and the files' digests by name."""

    rows: list[Row]
    faults: list[str]
    digests: dict[str, str]


def match_files(input_: Path, output: Path) -> dict[Path, Path]:
    """Map each input file to its output: a file for a file, a folder for a folder.

    Raises:
        ConfigError: there is nothing to read, or `output` cannot be written to.
    """
    if as_url(input_) is not None:
        if output.is_dir():
            raise ConfigError(f"{as_shown(output)} is a folder; name the file to write")
        return {input_: output}
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
        for record in records.records:
            place = source.place(record.line)
            rows.append(Row(file.name, place, record.line, record.index, *_asked(record.conversation)))
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
