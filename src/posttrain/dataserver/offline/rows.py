"""Finds the row that a completion answers: by its id, by its place, or by what it asks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from posttrain.conversation.messages import Conversation
from posttrain.data.records import Columns
from posttrain.data.splits import content_hash
from posttrain.dataserver.config.datasets import FileDataset, PromptColumnsConfig
from posttrain.dataserver.data.dataset_rows import Row, Rows
from posttrain.dataserver.data.samples import last_user_text, parse_prompt, prompt_columns
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

NAMING = "a line names its row by sample_id, by dataset and line, or by a prompt that is word for word the row's own"

_SHOWN_KEYS = 12
_SHOWN_ROWS = 4
_SHOWN_PROMPT = 80


class _Found(NamedTuple):
    dataset: str
    row: Row


class RowFinder:
    """Knows the rows of all data sets."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        # The rows that a program makes are too many to make them all.
        self._files = {
            name: config for name, config in loaded.config.datasets.items() if isinstance(config, FileDataset)
        }
        self._places = {name: _prompt_places(config.columns) for name, config in self._files.items()}
        self._indexes: dict[str, _PromptIndex] = {}

    def find(self, line: Mapping[str, Any]) -> str:
        """The sample id of the row that a line names.

        Raises:
            DataError: it names none, none that is there, or several.
        """
        sample_id, dataset, place = (line.get(key) for key in ("sample_id", "dataset", "line"))
        if sample_id is not None:
            return self._known(sample_id)
        if dataset is not None and place is not None:
            return self._by_place(dataset, place)
        return self._by_prompt(line)

    def _known(self, sample_id: object) -> str:
        if not isinstance(sample_id, str):
            raise DataError(f"sample_id must be text, not {str(sample_id)[:60]!r}")
        self._loaded.samples.target(sample_id)
        return sample_id

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
        # A row of the data may have such a column too, and anything in it.
        named = name if isinstance(name := line.get("dataset"), str) else None
        if named in self._loaded.datasets and named not in self._files:
            raise DataError(f"the rows of {named} are not searched for a prompt; name one by its line, counted from 0")
        asked: list[Conversation] = []
        found: list[_Found] = []
        for name in [named] if named in self._files else self._files:
            for conversation in self._conversations(name, line):
                asked.append(conversation)
                rows = self._loaded.datasets[name]
                found += [_Found(name, rows.read(index)) for index in self._index(name).find(conversation)]
        if not asked:
            raise DataError(f"it names no row and repeats no prompt; it holds only {shown_keys(line)}")
        if not found:
            raise DataError(f"no data set asks {_excerpt(asked[0])}")
        dataset, row = self._only_one(found, line, asked[0])
        return self._loaded.samples.sample_id(dataset, row.index)

    def _conversations(self, dataset: str, line: Mapping[str, Any]) -> Iterator[Conversation]:
        """What the line may be the answer to, if it answers a row of this data set."""
        for name, columns in self._places[dataset]:
            if line.get(name) is not None:
                yield parse_prompt(line, columns, None)

    def _index(self, name: str) -> "_PromptIndex":
        if name not in self._indexes:
            self._indexes[name] = _PromptIndex(self._loaded.datasets[name], prompt_columns(self._files[name].columns))
        return self._indexes[name]

    def _only_one(self, found: list[_Found], line: Mapping[str, Any], asked: Conversation) -> _Found:
        """The row that is meant, of those that ask the same; the first where they are equal in all they hold."""
        if len(found) == 1:
            return found[0]
        is_meant: list[Callable[[_Found], bool]] = [
            lambda each: self._file_name(each) == line.get("file") and each.row.key == str(line.get("line")),
            lambda each: self._system(each) == _system_of(asked),
        ]
        for condition in is_meant:
            found = [each for each in found if condition(each)] or found
        if len({(each.dataset, each.row.digest) for each in found}) > 1:
            shown = ", ".join(f"{each.dataset} line {each.row.key}" for each in found[:_SHOWN_ROWS])
            more = f" and {len(found) - _SHOWN_ROWS} more" if len(found) > _SHOWN_ROWS else ""
            raise DataError(f"{shown}{more} ask the same, {_excerpt(asked)}; name one by dataset and line")
        return found[0]

    def _file_name(self, found: _Found) -> str:
        return PurePath(self._files[found.dataset].path).name

    def _system(self, found: _Found) -> str | None:
        config = self._files[found.dataset]
        return _system_of(parse_prompt(found.row.record, prompt_columns(config.columns), config.system))


class _PromptIndex:
    """The rows of a data set by what they ask, whatever their system messages and tools."""

    def __init__(self, rows: Rows, columns: Columns) -> None:
        conversations = (parse_prompt(rows.read(index).record, columns, None) for index in range(len(rows)))
        hashes = np.fromiter(map(_turns_hash, conversations), dtype=np.uint64, count=len(rows))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, conversation: Conversation) -> list[int]:
        """The numbers of the rows that ask it, in their order."""
        key = np.uint64(_turns_hash(conversation))
        first, last = (int(np.searchsorted(self._hashes, key, side=side)) for side in ("left", "right"))
        return [int(index) for index in self._order[first:last]]


def _prompt_places(names: PromptColumnsConfig) -> list[tuple[str, Columns]]:
    """Each column in which a line may repeat a prompt, and how it is read: the data set's own, and the usual ones."""
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


def shown_keys(line: Mapping[str, Any]) -> str:
    """The keys of a line, as a message names them."""
    more = f" and {len(line) - _SHOWN_KEYS} more" if len(line) > _SHOWN_KEYS else ""
    return ", ".join(str(key)[:60] for key in list(line)[:_SHOWN_KEYS]) + more


def _excerpt(conversation: Conversation) -> str:
    text = last_user_text(conversation)
    return repr(text if len(text) <= _SHOWN_PROMPT else f"{text[:_SHOWN_PROMPT]}...")
