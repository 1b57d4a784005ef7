"""Preference data from wherever they are, as checked records, with every bad one told by its place."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from posttrain.config.sections.datasets import OnBadRecord
from posttrain.conversation.messages import Conversation
from posttrain.data.bad_records import require_columns
from posttrain.data.json_lines import Line
from posttrain.data.records import Columns, EmptyAnswerError, parse_record
from posttrain.data.sources import LineSource, Source, open_lines, open_source, values
from posttrain.dpo.config.data import (
    AnyPreferences,
    LabelledColumnsConfig,
    OnUselessPair,
    PairColumnsConfig,
    TwoFilesDataset,
)
from posttrain.dpo.preferences import IdenticalAnswersError, Preference, make_pair, parse_labelled, parse_pair
from posttrain.dpo.refused import Refused
from posttrain.errors import DataError

_USELESS = {EmptyAnswerError: "empty answer", IdenticalAnswersError: "identical answers"}
USELESS = tuple(_USELESS.values())
"""What the ledger calls records from which nothing can be learnt."""


Numbered = tuple[int, Preference]
"""A preference and its line."""


class Attempt(NamedTuple):
    """A record that is not parsed yet: its place as a message names it, its lines in short, and how to parse it."""

    place: str
    line: int
    lines: str
    """`7`, or `7/8` where it is line 7 of one file and line 8 of the other."""
    parse: Callable[[], Preference]


@dataclass
class PreferenceRecords:
    """What is usable, with its line; one line `place: reason` for each of the first bad records; all of them counted,
    and the useless ones by their kinds."""

    records: list[Numbered]
    faults: list[str]
    bad: int
    useless: Counter[str]

    @property
    def read(self) -> int:
        """All records, whatever became of them."""
        return len(self.records) + self.bad + self.useless.total()


@dataclass(frozen=True)
class PreferenceSource:
    """Preference data that are known to be there. `digest` names their content; `read` checks the records."""

    name: str
    digest: str
    attempts: Callable[[], Iterator[Attempt]]
    require_columns: Callable[[], None] = lambda: None
    """Called after all attempts: DataError where a column that was renamed is nowhere."""

    def read(self, on_bad_record: OnBadRecord, on_useless_pair: OnUselessPair) -> PreferenceRecords:
        """Check every record, and hold them all; DataError as `PreferenceStream` raises it."""
        stream = PreferenceStream(self, on_bad_record, on_useless_pair)
        return PreferenceRecords(list(stream), stream.bad.shown, stream.bad.count, stream.useless)


class PreferenceStream:
    """The usable records of a source, one after another, each with its line, in the memory of one of them.

    After a bad or useless one whose policy is error the others are still checked, but none is given any more.

    Attributes:
        usable: how many records can be used, of those that were read so far.
        bad: those that cannot.
        useless: how many of the records that are well formed teach nothing, by why.
    """

    def __init__(self, source: PreferenceSource, on_bad_record: OnBadRecord, on_useless_pair: OnUselessPair) -> None:
        self._source = source
        self._on_bad_record = on_bad_record
        self._on_useless_pair = on_useless_pair
        self.usable = 0
        self.bad = Refused()
        self.useless = Counter[str]()
        self._taught_nothing = Refused()

    def __iter__(self) -> Iterator[Numbered]:
        """Read the source, once.

        Raises:
            DataError: at the end: there are bad records and `on_bad_record` is error, or useless ones and
                `on_useless_pair` is error (all of a kind in one message), or no record is usable, or a column that was
                renamed is nowhere.
        """
        for attempt in self._source.attempts():
            try:
                record = attempt.parse()
            except (EmptyAnswerError, IdenticalAnswersError) as error:
                self.useless[_USELESS[type(error)]] += 1
                self._taught_nothing.add(attempt.place, attempt.lines, error)
            except DataError as error:
                self.bad.add(attempt.place, attempt.lines, error)
            else:
                self.usable += 1
                if not (self._is_bad or self._is_useless):
                    yield attempt.line, record
        self._require_usable()

    @property
    def read(self) -> int:
        """All records so far, whatever became of them."""
        return self.usable + self.bad.count + self._taught_nothing.count

    @property
    def _is_bad(self) -> bool:
        return self.bad.count > 0 and self._on_bad_record == "error"

    @property
    def _is_useless(self) -> bool:
        return self._taught_nothing.count > 0 and self._on_useless_pair == "error"

    def _require_usable(self) -> None:
        name = self._source.name
        if self._is_bad or (self.bad.count and not self.usable):
            raise self.bad.as_bad(name, self.usable)
        if self._is_useless or (self._taught_nothing.count and not self.usable):
            raise self._taught_nothing.as_useless(name, self.usable)
        if not self.usable:
            raise DataError(f"{name} holds no records")
        self._source.require_columns()


def open_preferences(config: AnyPreferences) -> PreferenceSource:
    """Find the data that a config names; DataError where there is nothing, or nothing that can be read."""
    if isinstance(config, TwoFilesDataset):
        accepted, rejected = config.files()
        return _two_files(open_source(accepted), open_source(rejected))
    columns = config.columns
    source = open_lines(config.path, [name for name in columns.model_dump().values() if name], config.split)
    return _one_file(source, columns)


def _one_file(source: LineSource, columns: PairColumnsConfig | LabelledColumnsConfig) -> PreferenceSource:
    seen: set[str] = set()

    def parse(line: Line) -> Preference:
        row = values(line)
        seen.update(row)
        if isinstance(columns, LabelledColumnsConfig):
            return parse_labelled(row, columns)
        return parse_pair(row, columns)

    def attempts() -> Iterator[Attempt]:
        for line in source.lines():
            yield Attempt(source.place(line.number), line.number, str(line.number), partial(parse, line))

    def check() -> None:
        require_columns(source.name, columns.model_dump(), type(columns)().model_dump(), seen)

    return PreferenceSource(source.name, source.digest, attempts, check)


def _two_files(accepted: Source, rejected: Source) -> PreferenceSource:
    """Record n of one file with record n of the other: blank lines count in neither."""
    name = f"{accepted.name} with {rejected.name}"
    seen: tuple[set[str], set[str]] = set(), set()

    def attempts() -> Iterator[Attempt]:
        for one, other in zip_longest(accepted.lines(), rejected.lines()):
            if one is None or other is None:
                raise DataError(_uneven(accepted, rejected))
            place = f"{accepted.place(one.number)} and {rejected.place(other.number)}"
            yield Attempt(place, one.number, f"{one.number}/{other.number}", partial(parse, one, other))

    def parse(one: Line, other: Line) -> Preference:
        chosen, weight = _side(accepted, one, seen[0], "accepted")
        answer, its_weight = _side(rejected, other, seen[1], "rejected")
        if its_weight not in (1.0, weight):
            raise DataError(f"the accepted row weighs {weight:g} and the rejected one {its_weight:g}; give one weight")
        return make_pair(chosen, answer, weight)

    def check() -> None:
        for source, columns in zip((accepted, rejected), seen, strict=True):
            require_columns(source.name, source.columns.names(), Columns().names(), columns)

    return PreferenceSource(name, f"{accepted.digest}-{rejected.digest}", attempts, check)


def _side(source: Source, line: Line, seen: set[str], which: str) -> tuple[Conversation, float]:
    try:
        row = values(line)
        seen.update(row)
        return parse_record(row, source.columns, require_answer=True)
    except DataError as error:
        raise type(error)(f"{which}: {error}") from None


def _uneven(accepted: LineSource, rejected: LineSource) -> str:
    one, other = (sum(1 for _ in source.lines()) for source in (accepted, rejected))
    return (
        f"{accepted.name} has {one} records and {rejected.name} has {other}; record n of one is compared with record n "
        "of the other, so both need the same number"
    )
