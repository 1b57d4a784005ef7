"""Open a data set by its name as numbered lines: a file, folder, pattern, saved data set, address or hub id."""

import os
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

from posttrain.base.cache import file_digest
from posttrain.base.text import as_shown, as_url
from posttrain.data.bad_records import Refused
from posttrain.data.readers.copies import local_copy, remote_digest
from posttrain.data.readers.data_files import (
    PROSE_KINDS,
    count_lines,
    find_files,
    find_remote,
    is_pattern,
    is_saved,
    kind_of,
    known_kind,
)
from posttrain.data.readers.json_lines import Line, read_json, read_jsonl, read_text, unreadable
from posttrain.data.readers.remote import RemoteFile
from posttrain.data.readers.tables import (
    first_parquet_rows,
    is_hub_id,
    load_hub,
    load_parquet,
    load_saved,
    read_csv,
    table_digest,
    table_lines,
)
from posttrain.errors import DataError

_LINE_READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": lambda path: read_csv(path, "\t"),
    **dict.fromkeys(PROSE_KINDS, read_text),
}


@dataclass(frozen=True)
class LineSource:
    """A data set whose lines can be read again and again, unchecked.

    Attributes:
        name: as shown in messages.
        digest: hash of the content.
        lines: reads all lines.
        head: reads rows as they are written, with all columns, from the start; those that cannot be read are left out.
        place: where a line is, as shown in messages, by its number.
        note: what is read, in one line, if the name does not say it; None if it does.
    """

    name: str
    digest: str
    lines: Callable[[], Iterator[Line]]
    head: Callable[[], Iterator[Mapping[str, Any]]]
    place: Callable[[int], str]
    note: str | None = None

    def refusal(self, faults: Iterable[tuple[int, str]], usable: int) -> DataError:
        """The error that lists bad records, each given by its number and the reason; `usable` others can be used."""
        refused = Refused()
        for number, reason in faults:
            refused.add(self.place(number), reason)
        return refused.as_bad(self.name, usable)


def open_lines(
    source: str | Path, wanted: Collection[str] | None, split: str = "train", *, prose: bool = False
) -> LineSource:
    """Find data by name; the lines of a table have the columns `wanted`, or all columns if it is None.

    Args:
        prose: whether a `.txt` or `.md` file is a row `{text}`.

    Raises:
        DataError: the data does not exist or cannot be read.
    """
    if (url := as_url(source)) is not None:
        _require_no_split(url, split)
        remote = find_remote(url, prose=prose)
        return _joined(url, [_remote_file(each) for each in remote.files], remote.note, wanted)
    path = Path(source)
    if isinstance(source, str) and is_hub_id(source) and not path.exists() and known_kind(path) is None:
        dataset = load_hub(source, split)
        digest = table_digest(dataset, dataset.column_names if wanted is None else wanted)
        return _table(source, dataset, wanted, digest)
    if is_saved(path):
        digest = blake2b(digest_size=16)
        for file in find_files(path).files:
            digest.update(file_digest(file).encode())
        return _table(as_shown(path), load_saved(path, split), wanted, digest.hexdigest())
    found = find_files(path, prose=prose)
    _require_no_split(as_shown(path), split)
    return _joined(as_shown(path), [_local_file(each) for each in found.files], found.note, wanted)


def _require_no_split(name: str, split: str) -> None:
    if split != "train":
        raise DataError(f"{name}: split {split[:60]!r} was requested, but a file has no splits; leave it out")


def is_quick_to_open(source: str) -> bool:
    """Whether the data are local files that are read line by line."""
    if as_url(source) is not None:
        return False
    path = Path(source)
    if is_saved(path) or not (os.path.exists(path) or is_pattern(source)):
        return False
    return all(kind_of(file) != ".parquet" for file in find_files(path, prose=True).files)


def place_in(source: str | Path, line: int) -> str:
    """Where a line of a data set is, by its number, without reading the content: for a message."""
    if as_url(source) is None:
        path = Path(source)
        if not (is_pattern(str(path)) or (os.path.isdir(path) and not is_saved(path))):
            return f"{as_shown(path)}:{line}"
    return _unread_parts(source).place(line)


@lru_cache(maxsize=16)
def _unread_parts(source: str | Path) -> "_Parts":
    if (url := as_url(source)) is not None:
        files = [_remote_file(each) for each in find_remote(url, prose=True).files]
    else:
        files = [_local_file(each) for each in find_files(Path(source), prose=True).files]
    return _Parts(tuple(_one_file(each, None, hashed=False) for each in files), tuple(files))


def _table(name: str, dataset: Any, wanted: Collection[str] | None, digest: str) -> LineSource:
    columns = dataset.column_names if wanted is None else wanted

    def head() -> Iterator[Mapping[str, Any]]:
        return (line.value or {} for line in table_lines(dataset, dataset.column_names, name))

    def lines() -> Iterator[Line]:
        return _telling(name, table_lines(dataset, columns, name), lambda: len(dataset))

    return LineSource(name, digest, lines, head, lambda number: f"{name} row {number}")


@dataclass(frozen=True)
class _DataFile:
    """A file, wherever it is.

    Attributes:
        name: as shown in messages.
        local: where it is on this machine; a remote file is downloaded if it must be.
        digest: hash of its content.
    """

    name: str
    local: Callable[[], Path]
    digest: Callable[[], str]

    def count(self) -> int:
        """Number of its lines or rows."""
        with self.opened() as path:
            return count_lines(path)

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Its path for the block, whose errors name the file and not the copy that is read."""
        path = self.local()
        try:
            yield path
        except DataError as error:
            raise DataError(str(error).replace(as_shown(path), self.name)) from None


def _local_file(path: Path) -> _DataFile:
    def digest() -> str:
        with unreadable(path):
            return file_digest(path)

    return _DataFile(as_shown(path), lambda: path, digest)


def _remote_file(file: RemoteFile) -> _DataFile:
    return _DataFile(file.url, partial(local_copy, file), partial(remote_digest, file))


def _joined(name: str, files: Sequence[_DataFile], note: str | None, wanted: Collection[str] | None) -> LineSource:
    """One file as it is, or several as one data set."""
    sources = tuple(_one_file(each, wanted) for each in files)
    if note is None:
        return sources[0]
    parts = _Parts(sources, tuple(files))
    together = blake2b("\n".join(part.digest for part in sources).encode(), digest_size=16).hexdigest()
    return LineSource(name, together, parts.lines, sources[0].head, parts.place, note)


def _one_file(file: _DataFile, wanted: Collection[str] | None, *, hashed: bool = True) -> LineSource:
    name, kind = file.name, kind_of(Path(file.name))
    digest = file.digest() if hashed else ""

    def head() -> Iterator[Mapping[str, Any]]:
        with file.opened() as path:
            if kind == ".parquet":
                yield from first_parquet_rows(path)
            else:
                yield from (line.value for line in _LINE_READERS[kind](path) if line.value is not None)

    def read() -> Iterator[Line]:
        with file.opened() as path:
            if kind == ".parquet":
                yield from table_lines(load_parquet(path), wanted or (), name)
            else:
                yield from _LINE_READERS[kind](path)

    between = " row " if kind == ".parquet" else ":"
    return LineSource(
        name, digest, lambda: _telling(name, read(), file.count), head, lambda number: f"{name}{between}{number}"
    )


def _telling(name: str, lines: Iterator[Line], count: Callable[[], int]) -> Iterator[Line]:
    from posttrain.base.console import telling

    return telling(lines, f"reading {name}", "lines", count)


@dataclass(frozen=True)
class _Parts:
    """Several files as one data set; their lines are numbered as if the files were joined."""

    parts: tuple[LineSource, ...]
    files: tuple[_DataFile, ...]

    @cached_property
    def _ends(self) -> list[int]:
        """The number of the last line of each file."""
        return list(accumulate(file.count() for file in self.files))

    def lines(self) -> Iterator[Line]:
        """The lines of all files, in order."""
        for part, start in zip(self.parts, [0, *self._ends], strict=False):
            for line in part.lines():
                yield Line(start + line.number, line.value, line.fault)

    def place(self, number: int) -> str:
        """The file that the line is in, and its number there."""
        index = min(bisect_left(self._ends, number), len(self.parts) - 1)
        return self.parts[index].place(number - [0, *self._ends][index])
