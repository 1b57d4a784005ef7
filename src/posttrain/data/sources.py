"""Read data sets from files and the hub as checked records.

`open_source` finds the data and its digest; if the cache has rows of that digest, no record is parsed. Otherwise
`Source.examples` says how to parse each record, and `ExampleStream` parses them one by one and counts the bad ones.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from posttrain.base.cache import file_digest
from posttrain.base.files import require_file
from posttrain.base.text import as_shown, clipped
from posttrain.config.sections.datasets import DatasetConfig, OnBadRecord
from posttrain.conversation.messages import Conversation
from posttrain.data.bad_records import SHOWN_FAULTS, Refused, refusal, require_columns
from posttrain.data.json_lines import Line, read_json, read_jsonl, unreadable
from posttrain.data.records import Columns, Record, UselessRecordError, parse_record
from posttrain.data.tables import is_hub_id, load_hub, load_parquet, read_csv, table_digest, table_lines
from posttrain.errors import DataError

T = TypeVar("T")

Parsed = tuple[Conversation, float]
"""A conversation and the factor on its loss."""

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
    """The usable records of a source, and one line `place: reason` for each bad one."""

    records: list[Record]
    faults: list[str]
    digest: str


@dataclass(frozen=True)
class LineSource:
    """A file or hub data set. Each call of `lines` reads it again, unchecked; `digest` is a hash of its content."""

    name: str
    digest: str
    lines: Callable[[], Iterator[Line]]
    counts_rows: bool
    """Whether `Line.number` is the row of a table rather than the line of a text file."""

    def place(self, number: int) -> str:
        """Where a record is, as shown in messages."""
        return f"{self.name} row {number}" if self.counts_rows else f"{self.name}:{number}"

    def refusal(self, faults: list[str], usable: int) -> DataError:
        """The error that lists bad records, each as `place: reason`."""
        return refusal(self.name, faults, usable)


class Attempt(NamedTuple, Generic[T]):
    """A record to parse: its place as shown in messages, its line, and the call that parses it."""

    place: str
    line: int
    parse: Callable[[], T]
    lines: str = ""
    """Its label in a long list of bad records: `7`, or `7/8` for lines 7 and 8 of two files; empty if not listed."""


@dataclass(frozen=True)
class Examples(Generic[T]):
    """The records of a source, each to be parsed into a T. `digest` is a hash of their content."""

    name: str
    digest: str
    attempts: Callable[[], Iterator[Attempt[T]]]
    require_columns: Callable[[], None]
    """Called after all attempts; raises DataError if a renamed column occurs in no record."""


class ExampleStream(Generic[T]):
    """Iterate over the usable examples of a source, each with its line, holding one at a time in memory.

    After the first record that is an error under the policy, the rest are still checked but no longer yielded.

    Attributes:
        usable: number of usable records read so far.
        bad: the records that cannot be used.
        useless: number of well-formed records from which nothing can be learnt, by reason.
    """

    def __init__(
        self,
        source: Examples[T],
        on_bad_record: OnBadRecord,
        on_useless: Literal["drop", "error"] | None = None,
        *,
        kept_faults: int | None = SHOWN_FAULTS,
    ) -> None:
        """
        Args:
            on_useless: None to count records that teach nothing as bad.
            kept_faults: how many bad records are described; None for all.
        """
        self._source = source
        self._on_bad_record, self._on_useless = on_bad_record, on_useless
        self.usable = 0
        self.bad = Refused(kept_faults)
        self.useless = Counter[str]()
        self._taught_nothing = Refused()

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Read the source, once.

        Raises:
            DataError: at the end, if there are bad records and `on_bad_record` is error, or useless ones and
                `on_useless` is error (all of a kind in one message), or no record is usable, or a renamed column occurs
                in no record.
        """
        for attempt in self._source.attempts():
            try:
                example = attempt.parse()
            except DataError as error:
                refused = self.bad
                if isinstance(error, UselessRecordError) and self._on_useless is not None:
                    self.useless[error.kind] += 1
                    refused = self._taught_nothing
                refused.add(f"{attempt.place}: {clipped(str(error))}", attempt.lines)
            else:
                self.usable += 1
                if not (self._is_bad or self._is_useless):
                    yield attempt.line, example
        self._require_usable()

    @property
    def read(self) -> int:
        """Number of records read so far, usable or not."""
        return self.usable + self.bad.count + self._taught_nothing.count

    @property
    def _is_bad(self) -> bool:
        return self.bad.count > 0 and self._on_bad_record == "error"

    @property
    def _is_useless(self) -> bool:
        return self._taught_nothing.count > 0 and self._on_useless == "error"

    def _require_usable(self) -> None:
        name = self._source.name
        if self._is_bad or (self.bad.count and not self.usable):
            raise self.bad.as_bad(name, self.usable)
        if self._is_useless or (self._taught_nothing.count and not self.usable):
            raise self._taught_nothing.as_useless(name, self.usable)
        if not self.usable:
            raise DataError(f"{name} holds no records")
        self._source.require_columns()


@dataclass(frozen=True)
class Source(LineSource):
    """Lines of conversations with known columns."""

    columns: Columns

    def examples(self, *, require_answer: bool) -> Examples[Parsed]:
        """The conversations, each with its weight."""
        seen: set[str] = set()

        def parse(line: Line) -> Parsed:
            row = values(line)
            seen.update(row)
            return parse_record(row, self.columns, require_answer=require_answer)

        def attempts() -> Iterator[Attempt[Parsed]]:
            for line in self.lines():
                yield Attempt(self.place(line.number), line.number, partial(parse, line))

        def check() -> None:
            if require_answer:
                require_columns(self.name, self.columns.names(), Columns().names(), seen)

        return Examples(self.name, self.digest, attempts, check)

    def read(self, on_bad_record: OnBadRecord, *, require_answer: bool) -> RecordSet:
        """All usable records at once; raises DataError as `ExampleStream` does."""
        stream = ExampleStream(self.examples(require_answer=require_answer), on_bad_record, kept_faults=None)
        records = [Record(index, line, *parsed) for index, (line, parsed) in enumerate(stream)]
        return RecordSet(records, stream.bad.shown, self.digest)


def values(line: Line) -> Mapping[str, Any]:
    """The columns of a line; DataError if it could not be read."""
    if line.value is None:
        raise DataError(line.fault)
    return line.value


def open_source(config: DatasetConfig) -> Source:
    """Find the data that a config names; DataError if it does not exist or cannot be read."""
    return open_data(config.path, Columns(**config.columns.model_dump()), config.split)


def open_data(source: str | Path, columns: Columns, split: str = "train", *, every_column: bool = False) -> Source:
    """`open_source` by name; with `every_column`, the lines of a table keep the columns not in `columns` too."""
    found = open_lines(source, None if every_column else list(columns.names().values()), split)
    return Source(found.name, found.digest, found.lines, found.counts_rows, columns)


def open_lines(source: str | Path, wanted: Collection[str] | None, split: str = "train") -> LineSource:
    """Find data by name; the lines of a table have the columns `wanted`, or all columns if it is None.

    Raises:
        DataError: the data does not exist or cannot be read.
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
        raise DataError(f"{as_shown(path)}: split {split[:60]!r} was requested, but a file has no splits; leave it out")
    name = as_shown(path)
    with unreadable(path):
        digest = file_digest(path)
    if kind == ".parquet":
        return LineSource(name, digest, lambda: table_lines(load_parquet(path), wanted or (), name), counts_rows=True)
    return LineSource(name, digest, lambda: _LINE_READERS[kind](path), counts_rows=False)


def _kind(path: Path) -> str | None:
    """The suffix that decides how a file is read, if it has a known one."""
    name = path.name.lower()
    kind = Path(name.removesuffix(".gz")).suffix
    if kind == ".parquet":
        return kind if name.endswith(kind) else None
    return kind if kind in _LINE_READERS else None


def _unknown_kind(path: Path) -> str:
    if path.suffix.lower() in _COMPRESSED:
        return f"{as_shown(path)} uses an unsupported compression; unpack it, or recompress it as .gz"
    return f"{as_shown(path)}: cannot tell the format from the name; supported: {_KNOWN}"
