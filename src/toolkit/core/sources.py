"""Data sets from wherever they are, as checked records, with every bad record told by its place.

A source is opened in two steps, because its digest tells whether it has to be read at all.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from toolkit.core.config.data import DatasetConfig, OnBadRecord
from toolkit.core.files import content_digest, require_file
from toolkit.core.jsonl import Line, read_json, read_jsonl
from toolkit.core.records import Columns, Record, parse_record
from toolkit.core.tables import is_hub_id, load_hub, load_parquet, read_csv, table_digest, table_lines
from toolkit.errors import DataError

# How many bad records an error shows; it counts them all.
SHOWN_FAULTS = 20

# A fault may quote what is in the data.
_LONGEST_FAULT = 300

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

    def refusal(self, faults: list[str], usable: int, limit: int = SHOWN_FAULTS) -> DataError:
        """The error that tells of bad records, `place: reason` each."""
        return refusal(self.name, faults, usable, limit)


@dataclass(frozen=True)
class Source(LineSource):
    """Data whose columns are known; the records are checked by `read`."""

    columns: Columns

    def read(self, on_bad_record: OnBadRecord, *, require_answer: bool, limit_faults: int = SHOWN_FAULTS) -> RecordSet:
        """Check every record.

        Raises:
            DataError: there are bad records (all in one message) and `on_bad_record` is error, or no record
                is usable, or a column that `columns` renames is nowhere.
        """
        records: list[Record] = []
        faults: list[str] = []
        seen: set[str] = set()
        for line in self.lines():
            try:
                row = values(line)
                seen.update(row)
                conversation, weight = parse_record(row, self.columns, require_answer=require_answer)
            except DataError as error:
                faults.append(f"{self.place(line.number)}: {clipped(str(error))}")
            else:
                records.append(Record(len(records), line.number, conversation, weight))
        if faults and (on_bad_record == "error" or not records):
            raise self.refusal(faults, len(records), limit_faults)
        if not records:
            raise DataError(f"{self.name} holds no records")
        if require_answer:
            require_columns(self.name, self.columns.names(), Columns().names(), seen)
        return RecordSet(records, faults, self.digest)


def values(line: Line) -> Mapping[str, Any]:
    """The columns of a line; DataError where it could not be read."""
    if line.value is None:
        raise DataError(line.fault)
    return line.value


def refusal(name: str, faults: list[str], usable: int, limit: int = SHOWN_FAULTS) -> DataError:
    """The error that tells of the bad records of a source, `place: reason` each."""
    head = f"{name} has {len(faults)} bad record{'s' * (len(faults) > 1)}"
    head += "" if usable else " and no usable one"
    more = [f"... and {len(faults) - limit} more"] if len(faults) > limit else []
    advice = ["correct them, or leave them out by on_bad_record: skip"] if usable else []
    return DataError("\n".join([f"{head}:", *(f"  {line}" for line in [*faults[:limit], *more]), *advice]))


def require_columns(name: str, named: Mapping[str, str], usual: Mapping[str, str], seen: Collection[str]) -> None:
    """Raise DataError where an optional column was given a name of its own and is in no record: it is misspelled."""
    for meaning in ("system", "tools", "weight"):
        column = named.get(meaning)
        if column is not None and column != usual.get(meaning) and column not in seen:
            near = get_close_matches(column, seen, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{name}: columns.{meaning} is {column!r}, which no record has{hint}")


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
    limit_faults: int = SHOWN_FAULTS,
) -> RecordSet:
    """The records of a file or a hub data set: `Source.read` in one call."""
    opened = open_data(source, columns, split)
    return opened.read(on_bad_record, require_answer=require_answer, limit_faults=limit_faults)


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
        return LineSource(source, digest, lambda: table_lines(dataset, taken), counts_rows=True)
    require_file(path)
    kind = _kind(path)
    if kind is None:
        raise DataError(_unknown_kind(path))
    if split != "train":
        raise DataError(f"{path}: split {split!r} was asked for, but a file has no splits; leave it out")
    name, digest = str(source), content_digest(path)
    if kind == ".parquet":
        return LineSource(name, digest, lambda: table_lines(load_parquet(path), wanted or ()), counts_rows=True)
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
        return f"{path} is compressed in a way that is not read here; unpack it, or pack it as .gz"
    return f"{path}: cannot tell from the name what it holds; known are {_KNOWN}"


def clipped(text: str) -> str:
    """The text at a length that a message can hold."""
    return text if len(text) <= _LONGEST_FAULT else f"{text[:_LONGEST_FAULT]}..."
