"""Completions from a file, each with the row of a data set that it answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolkit.core.jsonl import read_jsonl
from toolkit.core.messages import Message, parse_conversation
from toolkit.core.sources import clipped
from toolkit.dataserver.config.datasets import FileDataset
from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.samples import Target
from toolkit.errors import DataError

_KEYS = "sample_id; dataset and line; or the prompt itself, as messages, prompt, or the columns of the data set"


@dataclass(frozen=True)
class OfflineCompletion:
    """One completion of a file."""

    line: int
    sample_id: str
    target: Target
    completion: str
    iteration: int
    completion_tokens: int | None
    truncated: bool | None


def read_completions(path: Path, loaded: Loaded) -> list[OfflineCompletion]:
    """All completions of a JSON Lines file.

    A line holds `completion` (or `messages` that end with the assistant's answer, as toolkit-predict writes them) and
    says what it answers: by `sample_id`, by `dataset` and `line`, or by a prompt that a data set has. It may hold
    `iteration` (else 0), `tokens` or `completion_tokens`, and `truncated` or `stop_reason`.

    Raises:
        DataError: lines cannot be used; all of them are told.
    """
    finder = _RowFinder(loaded)
    found: list[OfflineCompletion] = []
    faults: list[str] = []
    for line in read_jsonl(path):
        try:
            if line.value is None:
                raise DataError(line.fault)
            found.append(_parse(line.number, line.value, finder))
        except DataError as error:
            faults.append(f"  {path}:{line.number}: {clipped(str(error))}")
    if faults:
        more = [f"  ... and {len(faults) - 20} more"] if len(faults) > 20 else []
        raise DataError("\n".join([f"{path}: {len(faults)} lines cannot be graded:", *faults[:20], *more]))
    if not found:
        raise DataError(f"{path} holds no completions")
    return found


def _parse(number: int, value: Mapping[str, Any], finder: "_RowFinder") -> OfflineCompletion:
    completion, prompt = _completion_and_prompt(value)
    sample_id, target = finder.find(value, prompt)
    truncated = value.get("truncated")
    if truncated is None and isinstance(value.get("stop_reason"), str):
        truncated = value["stop_reason"] == "length"
    return OfflineCompletion(
        line=number,
        sample_id=sample_id,
        target=target,
        completion=completion,
        iteration=_whole_number(value, "iteration") or 0,
        completion_tokens=_whole_number(value, "completion_tokens") or _whole_number(value, "tokens"),
        truncated=truncated if isinstance(truncated, bool) else None,
    )


def _completion_and_prompt(value: Mapping[str, Any]) -> tuple[str, str | None]:
    """What the model wrote, and the last user message before it, if there are messages."""
    completion = value.get("completion")
    if isinstance(completion, str):
        messages = value.get("messages") or value.get("prompt")
        if isinstance(messages, str):
            return completion, messages
        return completion, _last_user(parse_conversation(messages).messages) if messages else None
    if value.get("messages") is None:
        raise DataError("there is neither a completion (text) nor messages that end with an answer")
    messages = parse_conversation(value["messages"]).messages
    if messages[-1].role != "assistant":
        raise DataError("the messages do not end with an answer")
    return messages[-1].content, _last_user(messages[:-1])


def _last_user(messages: tuple[Message, ...]) -> str | None:
    return next((message.content for message in reversed(messages) if message.role == "user"), None)


def _whole_number(value: Mapping[str, Any], key: str) -> int | None:
    number = value.get(key)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise DataError(f"{key} must be a whole number from 0, not {str(number)[:60]!r}")
    return number


class _RowFinder:
    """Finds rows by id, by place, or by what they ask."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._by_prompt: dict[str, str] | None = None

    def find(self, value: Mapping[str, Any], prompt: str | None) -> tuple[str, Target]:
        """The sample id and the row; DataError where there is none."""
        sample_id = value.get("sample_id") or self._by_place(value) or self._by_text(value, prompt)
        if not isinstance(sample_id, str):
            raise DataError(f"no data set has the row that this answers; a line names it by {_KEYS}")
        return sample_id, self._loaded.samples.target(sample_id)

    def _by_place(self, value: Mapping[str, Any]) -> str | None:
        name, line = value.get("dataset"), value.get("line")
        if not isinstance(name, str) or name not in self._loaded.datasets or line is None:
            return None
        index = self._loaded.datasets[name].find(str(line))
        if index is None:
            raise DataError(f"the data set {name} has no row on line {line}")
        return self._loaded.samples.sample_id(name, index)

    def _by_text(self, value: Mapping[str, Any], prompt: str | None) -> str | None:
        if self._by_prompt is None:
            self._by_prompt = dict(self._prompts())
        if prompt is None:
            columns = [
                dataset.columns.prompt
                for dataset in self._loaded.config.datasets.values()
                if isinstance(dataset, FileDataset)
            ]
            prompt = next((text for name in columns if isinstance(text := value.get(name), str)), None)
        return self._by_prompt.get(prompt) if prompt is not None else None

    def _prompts(self) -> Iterator[tuple[str, str]]:
        # The first row counts where several ask the same.
        for name, rows in reversed(list(self._loaded.datasets.items())):
            for index in reversed(range(len(rows))):
                sample_id = self._loaded.samples.sample_id(name, index)
                yield self._loaded.samples.target(sample_id).prompt, sample_id
