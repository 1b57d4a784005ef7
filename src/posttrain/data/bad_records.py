"""Report all bad records of a source at once, each with its place."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

from posttrain.base.text import counted
from posttrain.errors import DataError, ToolkitError

# An error shows at most this many bad records, but counts all of them.
SHOWN_FAULTS = 20
# Up to this many bad records, an error lists the line numbers of those not shown, if the source provides them.
_LISTED_LINES = 10_000


def refusal(name: str, faults: list[str], usable: int, *, count: int | None = None, others: str = "") -> DataError:
    """The error that lists the bad records of a source.

    Args:
        faults: `place: reason` of each, or of the first ones.
        count: number of bad records, if `faults` does not have all.
        others: text to add about those that are not shown.
    """
    count = len(faults) if count is None else count
    head = f"{name} has {counted(count, 'bad record')}"
    head += "" if usable else " and no usable one"
    more = [f"... and {count - SHOWN_FAULTS} more{others}"] if count > SHOWN_FAULTS else []
    advice = ["correct them, or skip them with on_bad_record: skip"] if usable else []
    return DataError("\n".join([f"{head}:", *(f"  {line}" for line in [*faults[:SHOWN_FAULTS], *more]), *advice]))


class Refused:
    """Rejected records.

    Attributes:
        count: number of records.
        shown: one line `place: reason` for each of the first ones.
    """

    def __init__(self, kept: int | None = SHOWN_FAULTS) -> None:
        """`kept`: how many are described; None for all."""
        self.count = 0
        self.shown: list[str] = []
        self._kept = kept
        self._lines: list[str] = []

    def add(self, fault: str, lines: str) -> None:
        """Add a record by its `place: reason` and its line numbers ("" to list none)."""
        self.count += 1
        if self._kept is None or self.count <= self._kept:
            self.shown.append(fault)
        elif lines and self.count <= _LISTED_LINES:
            self._lines.append(lines)

    def as_bad(self, name: str, usable: int) -> DataError:
        """The error for records that cannot be used."""
        return refusal(name, self.shown, usable, count=self.count, others=self._others())

    def as_useless(self, name: str, usable: int) -> DataError:
        """The error for well-formed records from which nothing can be learnt."""
        shown = list(self.shown)
        if self.count > SHOWN_FAULTS:
            shown.append(f"... and {self.count - SHOWN_FAULTS} more{self._others()}")
        head = f"{name}: {counted(self.count, 'record')} from which nothing can be learnt"
        head += ":" if usable else ", and no other:"
        advice = ["drop them with on_useless_pair: drop"] if usable else []
        return DataError("\n".join([head, *(f"  {line}" for line in shown), *advice]))

    def _others(self) -> str:
        if not self._lines:
            return ""
        unlisted = ", ..." if self.count > _LISTED_LINES else ""
        return f", in lines {', '.join(self._lines)}{unlisted}"


def require_columns(name: str, named: Mapping[str, str], usual: Mapping[str, str], seen: Collection[str]) -> None:
    """Raise DataError if an optional column was renamed and occurs in no record: the name is misspelled."""
    for meaning in ("system", "tools", "weight"):
        column = named.get(meaning)
        if column is not None and column != usual.get(meaning) and column not in seen:
            near = get_close_matches(column, seen, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"{name}: columns.{meaning} is {column!r}, which no record has{hint}")


@contextmanager
def bad_records_first(records: Iterator[object]) -> Iterator[None]:
    """If the block fails, check the rest of `records` first: their faults take precedence over its own error."""
    try:
        yield
    except ToolkitError:
        for _ in records:
            pass
        raise
