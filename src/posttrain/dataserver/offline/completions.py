"""Read completions from a file, and find the row that each of them answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from posttrain.base.text import as_shown, clipped, counted, first_of
from posttrain.conversation.messages import Conversation, Message, parse_conversation
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.data.readers.json_lines import Line, read_json, read_jsonl
from posttrain.data.records import Columns
from posttrain.data.splits import content_hash
from posttrain.dataserver.config.datasets import FileDataset, PromptColumnsConfig, ReadDataset
from posttrain.dataserver.data.dataset_rows import Row, Rows
from posttrain.dataserver.data.samples import last_user_text, parse_prompt, prompt_columns
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

_NAMING = "a line names its row with sample_id, with dataset and line, or with exactly the row's prompt"

_SHOWN_KEYS = 12
_SHOWN_ROWS = 4
_SHOWN_PROMPT = 80
# The same limit as in a request to the server.
LARGEST_NUMBER = 2**40


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A completion, and the row that it answers."""

    place: str
    """Its location, as shown in messages."""
    number: int
    """Its line in the file, or its row in the journal."""
    sample_id: str
    iteration: int
    text: str
    completion_tokens: int | None
    truncated: bool | None


class CompletionFile:
    """A file of completions (a `.json` file may hold them as one array), read again for each iteration over it.

    A line holds `completion` (or `messages` that end with the assistant's answer, as toolkit-predict writes them) and
    names its row: by `sample_id`, by `dataset` and `line`, or by a prompt that a data set has. It may hold `iteration`,
    `completion_tokens` or `tokens`, and `truncated` or `stop_reason`; other keys are ignored.
    """

    def __init__(self, path: Path, loaded: Loaded, iteration: int) -> None:
        """`iteration`: for lines that name none."""
        self._path = path
        self._name = as_shown(path)
        self._finder = RowFinder(loaded)
        self._iteration = iteration
        self._leaves_out = loaded.config.on_bad_record == "skip"
        self.fault_count = 0
        """How many lines could not be used; complete once the file has been read."""
        self.first_faults: list[str] = []
        """`place: reason` for the first lines that could not be used."""

    def __iter__(self) -> Iterator[Completion]:
        """The completions.

        Raises:
            DataError: at the end, if lines cannot be used and `on_bad_record` is error (one message lists the first
                ones), or if no line can be used.
        """
        self.fault_count, self.first_faults = 0, []
        usable = 0
        read = read_json if self._path.name.removesuffix(".gz").endswith(".json") else read_jsonl
        for line in read(self._path):
            try:
                completion = self._completion(line)
            except DataError as error:
                self.fault_count += 1
                if len(self.first_faults) < SHOWN_FAULTS:
                    self.first_faults.append(f"{self._name}:{line.number}: {clipped(str(error))}")
            else:
                usable += 1
                yield completion
        if self.fault_count and (not self._leaves_out or not usable):
            raise DataError(self._refusal(usable))
        if not usable:
            raise DataError(f"{self._name} contains no completions")

    def _completion(self, line: Line) -> Completion:
        if line.value is None:
            raise DataError(line.fault)
        text = _written(line.value)
        iteration, tokens, usual_tokens = (
            _whole_number(line.value, key) for key in ("iteration", "tokens", "completion_tokens")
        )
        return Completion(
            place=f"{self._name}:{line.number}",
            number=line.number,
            sample_id=self._finder.find(line.value),
            iteration=self._iteration if iteration is None else iteration,
            text=text,
            completion_tokens=tokens if usual_tokens is None else usual_tokens,
            truncated=_truncated(line.value),
        )

    def _refusal(self, usable: int) -> str:
        count, hidden = self.fault_count, self.fault_count - len(self.first_faults)
        others = "" if usable else ", and there are no others"
        lines = [f"{self._name}: {counted(count, 'line')} cannot be graded{others}:"]
        lines += [f"  {fault}" for fault in self.first_faults]
        lines += [f"  ... and {hidden:,} more"] if hidden else []
        advice = "; on_bad_record: skip leaves such lines out" if usable else ""
        return "\n".join([*lines, _NAMING + advice])


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
        raise DataError(f"the completion contains a lone surrogate at character {error.start}") from None
    return text


def _answer(line: Mapping[str, Any]) -> str:
    if line.get("messages") is None:
        raise DataError(f"there is no completion, and no messages that end with one, only {_shown_keys(line)}")
    last: Message = parse_conversation(line["messages"]).messages[-1]
    if last.role != "assistant":
        raise DataError(f"there is no completion, and the messages end with a {last.role} message")
    for key, value in (("reasoning_content", last.reasoning), ("tool_calls", last.tool_calls)):
        if value:
            raise DataError(f"the answer has {key} besides its content; give everything the model wrote as completion")
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
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LARGEST_NUMBER:
        raise DataError(f"{key} must be a non-negative integer, not {str(number)[:60]!r}")
    return number


class _Found(NamedTuple):
    dataset: str
    row: Row


class RowFinder:
    """Finds the row of a data set that a line of a completion file names."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        # Rows that a program generates are too many to generate them all.
        self._files = {
            name: config for name, config in loaded.config.datasets.items() if isinstance(config, ReadDataset)
        }
        self._places = {name: _prompt_places(config.columns) for name, config in self._files.items()}
        self._indexes: dict[str, _PromptIndex] = {}

    def find(self, line: Mapping[str, Any]) -> str:
        """The sample id of the row that a line names.

        Raises:
            DataError: it names no row, a row that does not exist, or several rows.
        """
        sample_id, dataset, place = (line.get(key) for key in ("sample_id", "dataset", "line"))
        if isinstance(sample_id, str):
            self._loaded.samples.target(sample_id)
            return sample_id
        if sample_id is not None:
            raise DataError(f"sample_id must be text, not {str(sample_id)[:60]!r}")
        if dataset is not None and place is not None:
            return self._by_place(dataset, place)
        return self._by_prompt(line)

    def _by_place(self, dataset: object, place: object) -> str:
        datasets = self._loaded.datasets
        if not isinstance(dataset, str) or dataset not in datasets:
            near = get_close_matches(str(dataset), datasets, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"the config has no data set {str(dataset)[:100]!r}{hint}")
        index = datasets[dataset].find(str(place))
        if index is None:
            raise DataError(f"the data set {dataset} has no row {str(place)[:60]}")
        return self._loaded.samples.sample_id(dataset, index)

    def _by_prompt(self, line: Mapping[str, Any]) -> str:
        # The line may be a row of data with its own column `dataset`, which may hold anything.
        named = name if isinstance(name := line.get("dataset"), str) else None
        if named in self._loaded.datasets and named not in self._files:
            raise DataError(f"the rows of {named} are not searched for prompts; name one with its line, counted from 0")
        asked: list[Conversation] = []
        found: list[_Found] = []
        for name in [named] if named in self._files else self._files:
            for column, columns in self._places[name]:
                if line.get(column) is not None:
                    asked.append(parse_prompt(line, columns, None, self._files[name].strip_tags))
                    found += self._asking(name, asked[-1])
        if not asked:
            raise DataError(f"it names no row and contains no prompt, only {_shown_keys(line)}")
        if not found:
            raise DataError(f"no data set has the prompt {_excerpt(asked[0])}")
        dataset, row = self._only_one(found, line, asked[0])
        return self._loaded.samples.sample_id(dataset, row.index)

    def _asking(self, name: str, conversation: Conversation) -> list[_Found]:
        rows = self._loaded.datasets[name]
        if name not in self._indexes:
            self._indexes[name] = _PromptIndex(rows, self._files[name])
        return [_Found(name, rows.read(index)) for index in self._indexes[name].find(conversation)]

    def _only_one(self, found: list[_Found], line: Mapping[str, Any], asked: Conversation) -> _Found:
        """The row that the line means, among rows with the same prompt; the first if they are identical."""
        if len(found) == 1:
            return found[0]
        # The keys that toolkit-predict writes.
        file, place = line.get("file"), str(line.get("line"))
        in_file = [each for each in found if _file_name(self._files[each.dataset]) == file]
        found = [each for each in in_file if each.row.key == place] or found
        found = [each for each in found if self._system(each) == _system_of(asked)] or found
        if len({(each.dataset, each.row.digest) for each in found}) > 1:
            shown = first_of([f"{each.dataset} line {each.row.key}" for each in found], _SHOWN_ROWS)
            raise DataError(f"{shown} have the same prompt, {_excerpt(asked)}; name one with dataset and line")
        return found[0]

    def _system(self, found: _Found) -> str | None:
        config = self._files[found.dataset]
        return _system_of(
            parse_prompt(found.row.record, prompt_columns(config.columns), config.system, config.strip_tags)
        )


def _file_name(config: ReadDataset) -> str | None:
    return PurePath(config.path).name if isinstance(config, FileDataset) else None


class _PromptIndex:
    """The rows of a data set by their prompts, ignoring system messages and tools."""

    def __init__(self, rows: Rows, config: ReadDataset) -> None:
        columns, records = prompt_columns(config.columns), (rows.read(index).record for index in range(len(rows)))
        conversations = (parse_prompt(record, columns, None, config.strip_tags) for record in records)
        hashes = np.fromiter(map(_turns_hash, conversations), dtype=np.uint64, count=len(rows))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, conversation: Conversation) -> list[int]:
        """The indices of the rows with this prompt, in row order."""
        key = np.uint64(_turns_hash(conversation))
        first, last = (int(np.searchsorted(self._hashes, key, side=side)) for side in ("left", "right"))
        return [int(index) for index in self._order[first:last]]


def _prompt_places(names: PromptColumnsConfig) -> list[tuple[str, Columns]]:
    """Each column in which a line may repeat a prompt, and how to read it: the data set's own and the default ones."""
    alone = Columns(messages=None, completion=None, tools=None, weight=None)
    whole = [(name, replace(alone, messages=name, prompt=None)) for name in dict.fromkeys((names.messages, "messages"))]
    single = [(name, replace(alone, prompt=name)) for name in dict.fromkeys((names.prompt, "prompt"))]
    return [*whole, *single]


def _turns_hash(conversation: Conversation) -> int:
    messages = conversation.messages
    return content_hash(Conversation(messages[1:] if messages[0].role == "system" else messages))


def _system_of(conversation: Conversation) -> str | None:
    first = conversation.messages[0]
    return first.content if first.role == "system" else None


def _shown_keys(line: Mapping[str, Any]) -> str:
    """The keys of a line, as shown in messages."""
    return first_of([str(key)[:60] for key in line], _SHOWN_KEYS)


def _excerpt(conversation: Conversation) -> str:
    text = last_user_text(conversation)
    return repr(text if len(text) <= _SHOWN_PROMPT else f"{text[:_SHOWN_PROMPT]}...")
