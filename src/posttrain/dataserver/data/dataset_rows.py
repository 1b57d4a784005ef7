"""Rows of a data set, accessed by number or by key; the rows of a file are cached on disk.

A file is parsed and checked once, and cached under a hash of its content: the next start does neither, rows are read on
demand, and memory use stays small.
"""

import json
import mmap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from posttrain.data.token_arrays import mapped_array
from posttrain.dataserver.data.procedural import make_dataset, to_json

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    index: int
    """Its number among the usable rows, from 0."""
    key: str
    """Its place in the data: the line in a file, or the index of a generated item."""
    digest: str
    """Hash of its content, 8 hex digits."""
    record: Mapping[str, Any]


class Rows(Protocol):
    """The rows of a data set."""

    digest: str
    """Hash of all rows."""

    faults: list[str]
    """One line `place: reason` for each record left out."""

    too_long: int
    """Number of rows left out because their prompts are too long."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Row:
        """Row number `index`."""
        ...

    def key(self, index: int) -> str:
        """The key of row number `index`, without reading it."""
        ...

    def find(self, key: str) -> int | None:
        """The number of the row with that key; None if there is none."""
        ...

    def place(self, index: int) -> str:
        """The place of row `index`, as messages show it."""
        ...

    def contents(self) -> npt.NDArray[np.uint64]:
        """One hash per row; rows with the same prompt have the same hash."""
        ...


def row_digest(line: bytes) -> str:
    """Hash of the content of a row, 8 hex digits."""
    return blake2b(line, digest_size=4).hexdigest()


def row_number(key: str) -> int | None:
    """The number that a row's key spells; None if it is not a valid number."""
    is_number = key.isascii() and key.isdigit() and len(key) <= 18 and key == str(int(key))
    return int(key) if is_number else None


def json_digest(value: Any) -> str:
    """Hash of a JSON value, 32 hex digits."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


class FileRows:
    """The rows of one file, in the cache folder written by `RowWriter`."""

    def __init__(self, folder: Path, place: Callable[[int], str]) -> None:
        """`place`: gives a row's place in the source file, by its line."""
        described = json.loads((folder / "rows.json").read_bytes())
        self.digest: str = described["digest"]
        self.too_long: int = described["too_long"]
        self.longest: int | None = described["longest"]
        """The length that `max_prompt_percentile` allows."""
        self.had_tags: int = described["had_tags"]
        """Number of rows with tags removed from their prompts."""
        self.per_task: dict[str, int] = described["per_task"]
        self.faults = [f"{place(line)}: {reason}" for line, reason in described["faults"]]
        self._offsets: Indices = mapped_array(folder / "offsets.npy")
        self._lines: Indices = mapped_array(folder / "lines.npy")
        self._contents: npt.NDArray[np.uint64] = mapped_array(folder / "contents.npy")
        self._place = place
        with (folder / "rows.jsonl").open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._cached = lru_cache(maxsize=4096)(self._read)

    def __len__(self) -> int:
        return len(self._lines)

    def read(self, index: int) -> Row:
        """Row number `index`; the most recently used rows are cached."""
        return self._cached(index)

    def key(self, index: int) -> str:
        """The line of row number `index`."""
        return str(self._lines[index])

    def find(self, key: str) -> int | None:
        """The number of the row on line `key`; None if there is none."""
        line = row_number(key)
        if line is None:
            return None
        index = int(np.searchsorted(self._lines, line))
        return index if index < len(self) and self._lines[index] == line else None

    def place(self, index: int) -> str:
        """`file:line`."""
        return self._place(int(self._lines[index]))

    def contents(self) -> npt.NDArray[np.uint64]:
        """One hash of the prompt per row."""
        return self._contents

    def _read(self, index: int) -> Row:
        line = self._bytes[self._offsets[index] : self._offsets[index + 1]]
        return Row(index, self.key(index), row_digest(line), json.loads(line))


def kept_rows(folder: Path, place: Callable[[int], str]) -> FileRows | None:
    """The rows in a cache folder; None if there are none, or if they are damaged."""
    try:
        return FileRows(folder, place)
    except (OSError, ValueError, EOFError, LookupError, TypeError):
        return None


class RowFault(NamedTuple):
    """A record that was left out, by its line."""

    line: int
    reason: str


class PromptFacts(NamedTuple):
    """What is known of a row from its prompt and its columns, before it is stored."""

    content: int
    """Hash of the prompt."""
    characters: int
    """Length of the prompt."""
    length: int
    """Length of the prompt as `max_prompt_percentile` counts it, in tokens or in characters."""
    task: str | None = None
    had_tags: bool = False
    """Whether tags were removed from the prompt."""


class _Added(NamedTuple):
    line: int
    text: bytes
    facts: PromptFacts


class RowWriter:
    """Collects rows and writes the folder that `FileRows` reads."""

    def __init__(self) -> None:
        self._rows: list[_Added] = []
        self._too_long = 0
        self._longest: int | None = None

    def add(self, line: int, record: Mapping[str, Any], facts: PromptFacts) -> None:
        """Add the row on `line`."""
        # default=str: a table may hold dates and the like in unused columns.
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=str) + "\n"
        self._rows.append(_Added(line, text.encode("utf-8", "surrogatepass"), facts))

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def fewest_characters(self) -> int:
        """Length of the shortest prompt."""
        return min(row.facts.characters for row in self._rows)

    def leave_out_longer(self, max_characters: int | None, percentile: float | None) -> None:
        """Drop, and count, the rows whose prompts have more characters, or are longer than `percentile` % of them."""
        if percentile is not None and self._rows:
            # The smallest length in the file that this percentage of its prompts do not exceed.
            lengths = [row.facts.length for row in self._rows]
            self._longest = int(np.percentile(lengths, percentile, method="inverted_cdf"))
        kept = [
            row
            for row in self._rows
            if (max_characters is None or row.facts.characters <= max_characters)
            and (self._longest is None or row.facts.length <= self._longest)
        ]
        self._too_long += len(self._rows) - len(kept)
        self._rows = kept

    def write(self, folder: Path, faults: Sequence[RowFault]) -> None:
        """Fill `folder`, which exists and is empty."""
        body = b"".join(row.text for row in self._rows)
        (folder / "rows.jsonl").write_bytes(body)
        np.save(folder / "offsets.npy", np.cumsum([0, *(len(row.text) for row in self._rows)], dtype=np.int64))
        lines = np.array([row.line for row in self._rows], dtype="<i8")
        np.save(folder / "lines.npy", lines)
        np.save(folder / "contents.npy", np.array([row.facts.content for row in self._rows], dtype=np.uint64))
        # Includes the line numbers, since sample ids refer to rows by them.
        digest = blake2b(body + lines.tobytes(), digest_size=16).hexdigest()
        per_task = Counter(row.facts.task for row in self._rows if row.facts.task is not None)
        described = {
            "digest": digest,
            "faults": faults,
            "too_long": self._too_long,
            "longest": self._longest,
            "had_tags": sum(row.facts.had_tags for row in self._rows),
            "per_task": per_task,
        }
        (folder / "rows.json").write_text(json.dumps(described))


class ProceduralRows:
    """The items of one reasoning-gym data set as rows.

    The library gives item i the seed `seed + i`, so neighbouring seeds would share nearly all items. Here the seed is
    hashed first.
    """

    def __init__(self, name: str, seed: int, config: Mapping[str, Any], size: int = 100_000) -> None:
        """`config`: parameters of the data set; `size`: number of items.

        Raises:
            ConfigError: as `make_dataset`.
        """
        first = int.from_bytes(blake2b(f"{name} {seed}".encode(), digest_size=8).digest(), "big") % (2**32 - size)
        self._dataset = make_dataset(name, config, seed=first, size=size)
        self._source = {"dataset": name, "seed": seed, "config": dict(config)}
        self._size = size
        self.digest = json_digest([name, seed, dict(config), size, version("reasoning-gym")])
        self.faults: list[str] = []
        self.too_long = 0
        self._cached = lru_cache(maxsize=4096)(self._make)

    def __len__(self) -> int:
        return self._size

    def read(self, index: int) -> Row:
        """Item number `index`: question, answer (None if there are many), and what the scorer needs; JSON-serialisable.

        The most recently used items are cached.
        """
        return self._cached(index)

    def key(self, index: int) -> str:
        """The number of the item, as text."""
        return str(index)

    def find(self, key: str) -> int | None:
        """The item number that `key` spells; None if there is no such item."""
        number = row_number(key)
        return number if number is not None and number < self._size else None

    def place(self, index: int) -> str:
        """The task and the item's number."""
        return f"{self._source['dataset']} item {index}"

    def contents(self) -> npt.NDArray[np.uint64]:
        """The items' numbers: all items count as different, since comparing them would mean making them all."""
        return np.arange(self._size, dtype=np.uint64)

    def _make(self, index: int) -> Row:
        if not 0 <= index < self._size:
            raise IndexError(f"there is no item {index}; the last one is {self._size - 1}")
        entry = self._dataset[index]
        record = {
            "question": str(entry["question"]),
            "answer": entry["answer"],
            "reasoning_gym": {**self._source, "index": index},
            "entry": to_json(entry),
        }
        return Row(index, str(index), row_digest(json.dumps(record, sort_keys=True).encode()), record)
