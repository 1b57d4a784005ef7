"""Read data sets from files and the hub as checked records.

`open_source` finds the data and its digest; if the cache has rows of that digest, no record is parsed. Otherwise
`Source.examples` says how to parse each record, and `ExampleStream` parses them one by one and counts the bad ones.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from posttrain.base.text import clipped
from posttrain.config.sections.datasets import CONVERSATION_COLUMNS, DatasetConfig, Format, OnBadRecord
from posttrain.config.text_template import fill_template, template_fields
from posttrain.conversation.messages import Conversation
from posttrain.data.bad_records import SHOWN_FAULTS, Refused, require_columns
from posttrain.data.formats.formats import converted, format_of, recognised
from posttrain.data.readers.json_lines import Line
from posttrain.data.readers.open import LineSource, is_quick_to_open, open_lines
from posttrain.data.records import Columns, Record, UselessRecordError, parse_record
from posttrain.errors import DataError

T = TypeVar("T")

_LOOKED_AT = 100

Parsed = tuple[Conversation, float]
"""A conversation and the factor on its loss."""


@dataclass(frozen=True)
class RecordSet:
    """The usable records of a source, and one line `place: reason` for each bad one."""

    records: list[Record]
    faults: list[str]
    digest: str


class Attempt(NamedTuple, Generic[T]):
    """A record to parse: its place as shown in messages, its line, and the call that parses it."""

    place: str
    line: int
    parse: Callable[[], T]
    lines: str = ""
    """Its label in a long list of bad records: `7`, or `7/8` for lines 7 and 8 of two files; empty if not listed."""


@dataclass(frozen=True)
class Examples(Generic[T]):
    """The records of a source, each to be parsed into a T.

    Attributes:
        digest: hash of their content.
        require_columns: called after all attempts; raises DataError if a renamed column occurs in no record.
        note: what is read, in one line, if the name does not say it; None if it does.
    """

    name: str
    digest: str
    attempts: Callable[[], Iterator[Attempt[T]]]
    require_columns: Callable[[], None]
    note: str | None = None


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
                refused.add(attempt.place, clipped(str(error)), attempt.lines)
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


def require_usable_start(
    sources: Iterable[tuple[Collection[str], Callable[[], Examples[Any]]]], on_bad_record: OnBadRecord
) -> None:
    """Look at the first records of each data set, before anything slow is loaded.

    Hugging Face data sets and `.parquet` files are left out, since opening them is slow.

    Args:
        sources: for each data set its files, and a call that opens it.

    Raises:
        DataError: of the first 100 records of a data set none can be used.
    """
    problems = []
    for files, opened in sources:
        if not all(map(is_quick_to_open, files)):
            continue
        try:
            examples = opened()
            refused = _refused_at_start(examples)
        except DataError as error:
            problems.append(str(error))
            continue
        if refused is not None and (refused.count < _LOOKED_AT or on_bad_record == "error"):
            name = examples.name if refused.count < _LOOKED_AT else f"the beginning of {examples.name}"
            problems.append(str(refused.as_bad(name, 0)))
    if problems:
        raise DataError("\n".join(problems))


def _refused_at_start(examples: Examples[Any]) -> Refused | None:
    """The first records, if none of them can be used."""
    refused = Refused()
    for attempt in islice(examples.attempts(), _LOOKED_AT):
        try:
            attempt.parse()
            return None
        except UselessRecordError:
            return None
        except DataError as error:
            refused.add(attempt.place, clipped(str(error)))
    return refused if refused.count else None


@dataclass(frozen=True)
class Source(LineSource):
    """Lines of conversations with known columns."""

    columns: Columns = field(kw_only=True)

    def examples(self, *, require_answer: bool) -> Examples[Parsed]:
        """The conversations, each with its weight."""
        seen: set[str] = set()

        def parse(line: Line) -> Parsed:
            row = values(line)
            seen.update(row)
            with format_suggested(row):
                return parse_record(row, self.columns, require_answer=require_answer)

        def attempts() -> Iterator[Attempt[Parsed]]:
            for line in self.lines():
                yield Attempt(self.place(line.number), line.number, partial(parse, line))

        def check() -> None:
            if require_answer:
                require_columns(self.name, self.columns.names(), Columns().names(), seen)

        return Examples(self.name, self.digest, attempts, check, self.note)

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


@contextmanager
def format_suggested(row: Mapping[str, Any]) -> Iterator[None]:
    """If the block cannot parse the row, add to the error which format of other tools the row looks like."""
    try:
        yield
    except UselessRecordError:
        raise
    except DataError as error:
        if found := recognised(row):
            raise DataError(f"{error}; the row looks like {found.shape}: set `format: {found.name}`") from None
        if set(row) & CONVERSATION_COLUMNS or not isinstance(row.get("text"), str):
            raise
        raise DataError(f"{error}; for a text without turns, set `type: text`") from None


def open_source(config: DatasetConfig) -> Source:
    """Find the data that a config names; DataError if it does not exist or cannot be read."""
    return open_data(config.path, Columns(**config.columns.model_dump()), config.split, config.format)


def open_data(
    source: str | Path,
    columns: Columns,
    split: str = "train",
    format_: Format = "auto",
    *,
    every_column: bool = False,
) -> Source:
    """`open_source` by name; with `every_column`, the lines of a table keep the columns not in `columns` too."""
    found = open_rows(source, columns.names(), split, format_, every_column=every_column)
    return Source(**vars(found), columns=columns)


def open_rows(
    source: str | Path,
    names: Mapping[str, str],
    split: str = "train",
    format_: Format = "auto",
    *,
    every_column: bool = False,
    prose: bool = False,
) -> LineSource:
    """Find data by name; its rows have the toolkit's own columns, and a text for each template among their names.

    With `format_` auto, the format is looked for only if no column of the conversation is renamed.

    Args:
        names: the column of each meaning, or the template of its text.
        every_column: whether the lines of a table keep the columns not in `names` too.
        prose: whether a `.txt` or `.md` file is a row `{text}`.

    Raises:
        DataError: the data does not exist or cannot be read.
    """
    templates = [name for name in names.values() if template_fields(name)]
    wanted = {field for name in names.values() for field in template_fields(name) or (name,)}
    is_renamed = any(name != meaning for meaning, name in names.items() if meaning in CONVERSATION_COLUMNS)
    is_own = format_ == "columns" or (format_ == "auto" and is_renamed)
    found = open_lines(source, None if every_column else wanted, split, prose=prose)
    if not is_own and (known := format_of(found, format_)) is not None:
        whole = found if every_column else open_lines(source, None, split, prose=prose)
        found = converted(whole, known, format_)
    return replace(found, lines=partial(_filled, found.lines, templates)) if templates else found


def _filled(lines: Callable[[], Iterator[Line]], templates: Sequence[str]) -> Iterator[Line]:
    """The lines, each with the texts of the templates, under the template as column name."""
    for line in lines():
        if (row := line.value) is None:
            yield line
            continue
        try:
            yield Line(line.number, {**row, **{template: fill_template(template, row) for template in templates}})
        except DataError as error:
            yield Line(line.number, None, str(error))
