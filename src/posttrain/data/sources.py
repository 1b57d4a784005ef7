"""Data sets from wherever they are, as checked records, with every bad record told by its place.

A source is opened in two steps, because its digest tells whether it has to be read at all.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.file_digests import file_digest
from posttrain.base.files import require_file
from posttrain.base.text import as_shown, clipped
from posttrain.config.sections.datasets import DatasetConfig, OnBadRecord
from posttrain.data.bad_records import SHOWN_FAULTS, refusal, require_columns
from posttrain.data.json_lines import Line, read_json, read_jsonl, unreadable
from posttrain.data.records import Columns, Record, parse_record
from posttrain.data.tables import is_hub_id, load_hub, load_parquet, read_csv, table_digest, table_lines
from posttrain.errors import DataError

_LINE_READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": lambda path: read_csv(path, "\t"),
}
_COMPRESSED = {".zst", ".bz2", ".xz", ".zip", ".lz4", ".br", ".7z"}
_KNOWN = f"{', '.join(_LINE_READERS)} (also with .gz) and .parquet"


@dataclass(frozen=True)
class RecordSet:
    """The usable records of a source, and one line `place: reason` for each of the others."""

    records: list[Record]
    faults: list[str]
    digest: str


@dataclass(frozen=True)
class LineSource:
    """Data that are known to be there, as lines that are not checked yet. `digest` names their content."""

    name: str
    digest: str
    lines: Callable[[], Iterator[Line]]
    counts_rows: bool
    """Whether `lines` are numbered by row, as in a table, and not by line of a text file."""

    def place(self, number: int) -> str:
        """Where a record stands, as a message names it."""
        return f"{self.name} row {number}" if self.counts_rows else f"{self.name}:{number}"

    def refusal(self, faults: list[str], usable: int) -> DataError:
        """The error that tells of bad records, `place: reason` each."""
        return refusal(self.name, faults, usable)


@dataclass(frozen=True)
class Source(LineSource):
    """Data whose columns are known; the records are checked by `read`."""

    columns: Columns

    def read(self, on_bad_record: OnBadRecord, *, require_answer: bool) -> RecordSet:
        """Check every record, and hold them all; DataError as `RecordStream` raises it."""
        stream = RecordStream(self, on_bad_record, require_answer=require_answer, kept_faults=None)
        return RecordSet(list(stream), stream.faults, self.digest)


class RecordStream:
    """The usable records of a source, one after another, in the memory of one of them.

    After a bad record under `on_bad_record: error` the others are still checked, but none is given any more.

    Attributes:
        usable: how many records can be used, of those that were read so far.
        bad: how many cannot.
        faults: one line `place: reason` for each of the first bad ones.
    """

    def __init__(
        self,
        source: Source,
        on_bad_record: OnBadRecord,
        *,
        require_answer: bool,
        kept_faults: int | None = SHOWN_FAULTS,
    ) -> None:
        """`kept_faults`: how many of the bad records are described; None for all."""
        self._source = source
        self._on_bad_record = on_bad_record
        self._require_answer = require_answer
        self._kept_faults = kept_faults
        self.usable = 0
        self.bad = 0
        self.faults: list[str] = []

    def __iter__(self) -> Iterator[Record]:
        """Read the source, once.

        Raises:
            DataError: at the end: there are bad records (all in one message) and `on_bad_record` is error, or no record
                is usable, or a column that was renamed is nowhere.
        """
        seen: set[str] = set()
        for line in self._source.lines():
            try:
                row = values(line)
                seen.update(row)
                conversation, weight = parse_record(row, self._source.columns, require_answer=self._require_answer)
            except DataError as error:
                self._add_fault(line.number, error)
            else:
                self.usable += 1
                if not self._refused:
                    yield Record(self.usable - 1, line.number, conversation, weight)
        self._require_usable(seen)

    @property
    def _refused(self) -> bool:
        return self.bad > 0 and self._on_bad_record == "error"

    def _add_fault(self, line: int, error: DataError) -> None:
        self.bad += 1
        if self._kept_faults is None or len(self.faults) < self._kept_faults:
            self.faults.append(f"{self._source.place(line)}: {clipped(str(error))}")

    def _require_usable(self, seen: Collection[str]) -> None:
        name, columns = self._source.name, self._source.columns
        if self._refused or (self.bad and not self.usable):
            raise refusal(name, self.faults, self.usable, count=self.bad)
        if not self.usable:
            raise DataError(f"{name} holds no records")
        if self._require_answer:
            require_columns(name, columns.names(), Columns().names(), seen)


def values(line: Line) -> Mapping[str, Any]:
    """The columns of a line; DataError where it could not be read."""
    if line.value is None:
        raise DataError(line.fault)
    return line.value


def open_source(config: DatasetConfig) -> Source:
    """Find the data that a config names; DataError where there is nothing, or nothing that can be read."""
    return open_data(config.path, Columns(**config.columns.model_dump()), config.split)


def read_records(
    source: str | Path,
    columns: Columns,
    *,
    require_answer: bool,
    on_bad_record: OnBadRecord = "error",
    split: str = "train",
) -> RecordSet:
    """The records of a file or a hub data set: `Source.read` in one call."""
    return open_data(source, columns, split).read(on_bad_record, require_answer=require_answer)


def open_data(source: str | Path, columns: Columns, split: str = "train", *, every_column: bool = False) -> Source:
    """`open_source` by name; with `every_column` the lines of a table have the columns that nobody named too."""
    found = open_lines(source, None if every_column else list(columns.names().values()), split)
    return Source(found.name, found.digest, found.lines, found.counts_rows, columns)


def open_lines(source: str | Path, wanted: Collection[str] | None, split: str = "train") -> LineSource:
    """Find data by name; the lines of a table have the columns `wanted`, or all of them under None.

    Raises:
        DataError: there is nothing, or nothing that can be read.
    """
    path = Path(source)
    if isinstance(source, str) and is_hub_id(source) and _kind(path) is None and not path.exists():
        dataset = load_hub(source, split)
        taken = dataset.column_names if wanted is None else wanted
        digest = table_digest(dataset, taken)
        return LineSource(source, digest, lambda: table_lines(dataset, taken, source), counts_rows=True)
    require_file(path)
    kind = _kind(path)
    if kind is None:
        raise DataError(_unknown_kind(path))
    if split != "train":
        raise DataError(f"{as_shown(path)}: split {split[:60]!r} was asked for, but a file has no splits; leave it out")
    name = as_shown(path)
    with unreadable(path):
        digest = file_digest(path)
    if kind == ".parquet":
        return LineSource(name, digest, lambda: table_lines(load_parquet(path), wanted or (), name), counts_rows=True)
    return LineSource(name, digest, lambda: _LINE_READERS[kind](path), counts_rows=False)


def _kind(path: Path) -> str | None:
    """The ending that says how a file is read, if it has one."""
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    if kind == ".parquet":
        return kind if name.endswith(kind) else None
    return kind if kind in _LINE_READERS else None


def _unknown_kind(path: Path) -> str:
    if path.suffix.lower() in _COMPRESSED:
        return f"{as_shown(path)} is compressed in a way that is not read here; unpack it, or pack it as .gz"
    return f"{as_shown(path)}: cannot tell from the name what it holds; known are {_KNOWN}"
