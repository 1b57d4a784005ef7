"""Preference data from wherever they are, as checked records, with every bad one told by its place."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from toolkit.core.config.data import OnBadRecord
from toolkit.core.jsonl import Line
from toolkit.core.messages import Conversation
from toolkit.core.records import Columns, EmptyAnswerError, parse_record
from toolkit.core.sources import (
    SHOWN_FAULTS,
    LineSource,
    Source,
    clipped,
    open_lines,
    open_source,
    refusal,
    require_columns,
    values,
)
from toolkit.dpo.config.data import (
    AnyPreferences,
    LabelledColumnsConfig,
    OnUselessPair,
    PairColumnsConfig,
    TwoFilesDataset,
)
from toolkit.dpo.preferences import IdenticalAnswersError, Preference, make_pair, parse_labelled, parse_pair
from toolkit.errors import DataError

# What the ledger calls pairs from which nothing can be learnt.
_USELESS = {EmptyAnswerError: "empty answer", IdenticalAnswersError: "identical answers"}


class Attempt(NamedTuple):
    """A record that is not parsed yet: its place as a message names it, its lines in short, and how to parse it."""

    place: str
    line: int
    lines: str
    """`7`, or `7/8` where it is line 7 of one file and line 8 of the other."""
    parse: Callable[[], Preference]


@dataclass
class PreferenceRecords:
    """What is usable, with its line; one line `place: reason` for each bad record; and the useless ones counted."""

    records: list[tuple[int, Preference]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    useless: Counter[str] = field(default_factory=Counter)

    @property
    def read(self) -> int:
        """All records, whatever became of them."""
        return len(self.records) + len(self.faults) + self.useless.total()


@dataclass(frozen=True)
class PreferenceSource:
    """Preference data that are known to be there. `digest` names their content; `read` checks the records."""

    name: str
    digest: str
    attempts: Callable[[], Iterator[Attempt]]
    require_columns: Callable[[], None] = lambda: None
    """Called after all attempts: DataError where a column that was renamed is nowhere."""

    def read(self, on_bad_record: OnBadRecord, on_useless_pair: OnUselessPair) -> PreferenceRecords:
        """Check every record.

        Raises:
            DataError: there are bad records and `on_bad_record` is error, or useless ones and `on_useless_pair` is
                error (all of a kind in one message), or no record is usable.
        """
        found = PreferenceRecords()
        useless, bad_lines, useless_lines = list[str](), list[str](), list[str]()
        for attempt in self.attempts():
            try:
                found.records.append((attempt.line, attempt.parse()))
            except (EmptyAnswerError, IdenticalAnswersError) as error:
                found.useless[_USELESS[type(error)]] += 1
                useless.append(f"{attempt.place}: {clipped(str(error))}")
                useless_lines.append(attempt.lines)
            except DataError as error:
                found.faults.append(f"{attempt.place}: {clipped(str(error))}")
                bad_lines.append(attempt.lines)
        if found.faults and (on_bad_record == "error" or not found.records):
            raise _bad(self.name, found.faults, bad_lines, len(found.records))
        if useless and (on_useless_pair == "error" or not found.records):
            raise _useless(self.name, useless, useless_lines, len(found.records))
        if not found.records:
            raise DataError(f"{self.name} holds no records")
        self.require_columns()
        return found


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


def _bad(name: str, faults: list[str], lines: list[str], usable: int) -> DataError:
    """As for SFT, but those that are too many to be shown in full are told by their lines."""
    rest = f"... and {len(faults) - SHOWN_FAULTS} more"
    return DataError(str(refusal(name, faults, usable)).replace(rest, f"{rest}, in lines {_others(lines)}"))


def _useless(name: str, faults: list[str], lines: list[str], usable: int) -> DataError:
    shown = faults[:SHOWN_FAULTS]
    if len(faults) > SHOWN_FAULTS:
        shown.append(f"... and {len(faults) - SHOWN_FAULTS} more, in lines {_others(lines)}")
    head = f"{name}: {len(faults)} record{'s' * (len(faults) > 1)} from which nothing can be learnt"
    head += ":" if usable else ", and no other:"
    advice = ["leave them out by on_useless_pair: drop"] if usable else []
    return DataError("\n".join([head, *(f"  {line}" for line in shown), *advice]))


def _others(lines: list[str]) -> str:
    return ", ".join(lines[SHOWN_FAULTS:])
