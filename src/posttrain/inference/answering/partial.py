"""Write answers as lines of output, appended as they come, so that a killed run loses none.

The first line of `<output>.partial`, or of a shard's file, says what is being answered, by which weights and how; each
further line is one answer. A torn or damaged line is ignored, and its answer is generated again. At the end the answers
are sorted, and each output appears under its own name in one step.
"""

import io
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from posttrain.base.files import atomic_write_bytes, atomic_writer, remove_left_behind
from posttrain.base.strict_json import json_line, parse_object
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import template_messages
from posttrain.errors import ConfigError, DataError
from posttrain.inference.answering.rows import Row
from posttrain.inference.answering.shards import Shard
from posttrain.runs.manifest import differences

AnswerKey = tuple[str, int, int]
"""(name of the input file, row in it, sample)."""

_SHOWN_DIFFERENCES = 10
_KEYS = {"file", "row", "sample", "stop_reason", "messages"}


@dataclass(frozen=True)
class Answer:
    """What a model said.

    Attributes:
        stop_reason: as in `StopReason`.
        tokens: its length, with the end token; None if a server does not tell.
        token_ids, logprobs: of its tokens; None unless log-probabilities were asked for.
    """

    text: str
    stop_reason: str
    tokens: int | None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None


def answer_line(row: Row, sample: int, answer: Answer) -> dict[str, Any]:
    """One line of the output: the conversation with its new answer, ready for training, and facts about the answer."""
    line: dict[str, Any] = {
        "file": row.file,
        "line": row.line,
        "row": row.index,
        "sample": sample,
        "messages": [*plain_messages(row.prompt), {"role": "assistant", "content": answer.text}],
        "stop_reason": answer.stop_reason,
        "tokens": answer.tokens,
        **row.facts,
    }
    if row.prompt.tools:
        line["tools"] = list(row.prompt.tools)
    if row.reference is not None:
        line["reference"] = row.reference
    if answer.token_ids is not None and answer.logprobs is not None:
        line["token_ids"] = list(answer.token_ids)
        line["logprobs"] = [round(value, 5) for value in answer.logprobs]
    return line


def plain_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages of a row of training data, with `train: false` on those that must not be trained on."""
    plain = template_messages(conversation)
    for message, object_ in zip(conversation.messages, plain, strict=True):
        if not message.train:
            object_["train"] = False
    return plain


class PartialOutput:
    """The answers so far. Reading them changes nothing on disk; `begin` does.

    Attributes:
        output: the file or folder that is written in the end.
        job: the job that the answers on disk belong to; None if there is no partial file.
        counts: number of answers by stop reason; in addition, `empty` counts the answers without text.
    """

    def __init__(self, output: Path, shard: Shard | None = None) -> None:
        """`shard`: whose answers these are; None for those of all rows."""
        self.output = Path(os.path.abspath(output))
        whole = self.output.with_name(f"{self.output.name}.partial")
        self.path = whole if shard is None else shard.file_of(self.output)
        self.job: dict[str, Any] | None = None
        self.counts: Counter[str] = Counter()
        self._places: dict[AnswerKey, tuple[int, int]] = {}
        self._file: BinaryIO | None = None
        if self.path.is_file():
            self._read()

    def __contains__(self, key: AnswerKey) -> bool:
        return key in self._places

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[AnswerKey]:
        return iter(self._places)

    def require_free(
        self, job: Mapping[str, Any], outputs: Collection[Path], wanted: Collection[AnswerKey], *, overwrite: bool
    ) -> None:
        """Refuse to replace existing files, unless `overwrite` allows it; nothing is written.

        Raises:
            ConfigError: an output exists, or the partial file holds answers of another job.
        """
        same = self.job == job
        # A run killed while writing its outputs has all answers, and wrote the existing outputs itself.
        was_finishing = same and all(key in self._places for key in wanted)
        require_new(outputs, overwrite=overwrite or was_finishing)
        if self._places and not (overwrite or same):
            changed = differences(self.job or {}, dict(job))
            shown = "".join(f"\n  {line}" for line in changed[:_SHOWN_DIFFERENCES])
            raise ConfigError(
                f"{self.path} holds answers of another job ({len(self)} of them); what differs:{shown}\n"
                "undo these changes to continue, or start over with --overwrite"
            )

    def begin(self, job: Mapping[str, Any]) -> None:
        """Open the file for further answers; start a new one unless it belongs to the same job."""
        if self.job != job:
            self.job = dict(job)
            self._places.clear()
            self.counts.clear()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write_bytes(self.path, json_line({"job": job}))
        self._file = self.path.open("a+b")
        if self._file.seek(0, io.SEEK_END):
            self._file.seek(-1, io.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")  # a run was killed mid-line: the next answer must not continue it

    def add(self, answer: Mapping[str, Any]) -> None:
        """Append an answer and flush it."""
        assert self._file is not None
        line = json_line(answer)
        self._file.write(line)
        self._file.flush()
        self._note(answer, self._file.tell() - len(line), len(line))

    def line(self, key: AnswerKey) -> bytes:
        """The line of an answer."""
        if self._file is None:
            self._file = self.path.open("rb")
        start, length = self._places[key]
        self._file.seek(start)
        return self._file.read(length)

    def remove(self, outputs: Collection[Path]) -> None:
        """Delete the partial file, and what killed runs left of it and of the outputs, which are there."""
        for path in (self.path, *outputs):
            remove_left_behind(path)
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file and leave it to a later run."""
        if self._file is not None:
            with suppress(OSError):  # for a line that a full disk refused; `add` has raised already
                self._file.close()

    def _read(self) -> None:
        with self.path.open("rb") as file:
            head = file.readline()
            self.job = (_object(head) or {}).get("job")
            if not isinstance(self.job, dict):
                raise ConfigError(f"{self.path} does not hold answers; move it out of the way")
            start = len(head)
            for raw in file:
                value = _object(raw)
                if value is not None and value.keys() >= _KEYS:
                    self._note(value, start, len(raw))
                start += len(raw)

    def _note(self, answer: Mapping[str, Any], start: int, length: int) -> None:
        key = (answer["file"], answer["row"], answer["sample"])
        if key not in self._places:
            self._places[key] = (start, length)
            self.counts[answer["stop_reason"]] += 1
            self.counts["empty"] += not answer["messages"][-1]["content"].strip()


def require_new(outputs: Collection[Path], *, overwrite: bool) -> None:
    """Refuse to replace existing outputs, unless `overwrite` allows it; ConfigError."""
    taken = [path for path in outputs if path.exists()]
    if taken and not overwrite:
        more = f" (and {len(taken) - 1} more)" if len(taken) > 1 else ""
        raise ConfigError(f"{taken[0]}{more} already exists; choose another name, or replace it with --overwrite")


def lines_in_order(parts: Sequence[PartialOutput], outputs: Mapping[str, Path]) -> dict[Path, Iterator[bytes]]:
    """The lines of each output: the answers of all parts to its input file, in the order of that."""
    holders: dict[str, list[tuple[AnswerKey, PartialOutput]]] = {name: [] for name in outputs}
    for part in parts:
        for key in part:
            holders[key[0]].append((key, part))
    return {
        path: (part.line(key) for key, part in sorted(holders[name], key=lambda each: each[0]))
        for name, path in outputs.items()
    }


def write_in_order(parts: Sequence[PartialOutput], outputs: Mapping[str, Path]) -> None:
    """Write the answers of all parts, in order, to the outputs; delete the partial files."""
    for path, lines in lines_in_order(parts, outputs).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_writer(path) as file:
            file.writelines(lines)
    for part in parts:
        part.close()
        part.remove(outputs.values())


def _object(raw: bytes) -> dict[str, Any] | None:
    """The JSON object in a complete line; None if the line is torn or damaged."""
    try:
        return parse_object(raw) if raw.endswith(b"\n") else None
    except DataError:
        return None
