"""Completions from a file, each with the row of a data set that it answers."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from posttrain.base.text import as_shown
from posttrain.conversation.messages import Message, parse_conversation
from posttrain.data.json_lines import Line, read_json, read_jsonl
from posttrain.data.sources import SHOWN_FAULTS, clipped
from posttrain.dataserver.offline.completion import Completion
from posttrain.dataserver.offline.rows import NAMING, RowFinder, shown_keys
from posttrain.dataserver.offline.wording import counted
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

_LARGEST_NUMBER = 2**63 - 1


class CompletionFile:
    """A file of completions (a `.json` file may hold them as one array), read anew each time it is gone through.

    A line holds `completion` (or `messages` that end with the assistant's answer, as toolkit-predict writes them) and
    says what it answers: by `sample_id`, by `dataset` and `line`, or by a prompt that a data set has. It may hold
    `iteration`, `completion_tokens` or `tokens`, and `truncated` or `stop_reason`; other keys are passed over.
    """

    def __init__(self, path: Path, loaded: Loaded, iteration: int) -> None:
        """`iteration`: that of the lines that name none."""
        self._path = path
        self._name = as_shown(path)
        self._finder = RowFinder(loaded)
        self._iteration = iteration
        self._leaves_out = loaded.config.on_bad_record == "skip"
        self.fault_count = 0
        """How many lines could not be used, once the file was gone through."""
        self.first_faults: list[str] = []
        """One line `place: reason` for each of the first ones."""

    def __iter__(self) -> Iterator[Completion]:
        """The completions.

        Raises:
            DataError: at the end, where lines cannot be used and `on_bad_record` is error (the first ones are told in
                one message), or where there are no usable ones.
        """
        self.fault_count, self.first_faults = 0, []
        usable = 0
        for line in _lines(self._path):
            completion = self._completion_or_fault(line)
            if completion is not None:
                usable += 1
                yield completion
        if self.fault_count and (not self._leaves_out or not usable):
            raise DataError(self._refusal(usable))
        if not usable:
            raise DataError(f"{self._name} holds no completions")

    def _completion_or_fault(self, line: Line) -> Completion | None:
        try:
            if line.value is None:
                raise DataError(line.fault)
            return self._completion(line.number, line.value)
        except DataError as error:
            self.fault_count += 1
            if len(self.first_faults) < SHOWN_FAULTS:
                self.first_faults.append(f"{self._name}:{line.number}: {clipped(str(error))}")
            return None

    def _completion(self, number: int, line: Mapping[str, Any]) -> Completion:
        text = _written(line)
        iteration = _whole_number(line, "iteration")
        tokens = [_whole_number(line, key) for key in ("completion_tokens", "tokens")]
        return Completion(
            place=f"{self._name}:{number}",
            number=number,
            sample_id=self._finder.find(line),
            iteration=self._iteration if iteration is None else iteration,
            text=text,
            completion_tokens=next((count for count in tokens if count is not None), None),
            truncated=_truncated(line),
        )

    def _refusal(self, usable: int) -> str:
        count, hidden = self.fault_count, self.fault_count - len(self.first_faults)
        lines = [f"{self._name}: {counted(count, 'line')} cannot be graded{'' if usable else ', and no other'}:"]
        lines += [f"  {fault}" for fault in self.first_faults]
        lines += [f"  ... and {hidden:,} more"] if hidden else []
        advice = "; on_bad_record: skip leaves such lines out" if usable else ""
        return "\n".join([*lines, NAMING + advice])


def _lines(path: Path) -> Iterator[Line]:
    return (read_json if path.name.removesuffix(".gz").endswith(".json") else read_jsonl)(path)


def _written(line: Mapping[str, Any]) -> str:
    """What the model wrote."""
    text = line.get("completion")
    if text is None:
        text = _answer(line)
    if not isinstance(text, str):
        raise DataError(f"completion must be text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the completion holds a lone surrogate at character {error.start}") from None
    return text


def _answer(line: Mapping[str, Any]) -> str:
    if line.get("messages") is None:
        raise DataError(f"there is no completion, and no messages that end with one, only {shown_keys(line)}")
    last: Message = parse_conversation(line["messages"]).messages[-1]
    if last.role != "assistant":
        raise DataError(f"there is no completion, and the messages end with a {last.role} message")
    for key, value in (("reasoning_content", last.reasoning), ("tool_calls", last.tool_calls)):
        if value:
            raise DataError(f"the answer has {key} apart from its content; give all that the model wrote as completion")
    return last.content


def _truncated(line: Mapping[str, Any]) -> bool | None:
    truncated, stop_reason = line.get("truncated"), line.get("stop_reason")
    if truncated is None:
        return None if stop_reason is None else stop_reason == "length"
    if not isinstance(truncated, bool):
        raise DataError(f"truncated must be true or false, not {str(truncated)[:60]!r}")
    return truncated


def _whole_number(line: Mapping[str, Any], key: str) -> int | None:
    number = line.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LARGEST_NUMBER:
        raise DataError(f"{key} must be a whole number from 0, not {str(number)[:60]!r}")
    return number
