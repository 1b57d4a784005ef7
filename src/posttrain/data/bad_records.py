"""Report all bad records of a source at once, each with its place."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches

from posttrain.base.text import counted
from posttrain.errors import DataError, ToolkitError

SHOWN_FAULTS = 20
"""An error shows at most this many bad records, but counts all of them."""

# Up to this many bad records, an error lists the line numbers of those not shown, if the source provides them.
_LISTED_LINES = 10_000
# A reason that more records share is shown once.
_MOST_ALIKE = 3


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
        self._reasons: dict[str, _Alike] = {}

    def add(self, place: str, reason: str, lines: str = "") -> None:
        """Add a record; `lines` are its line numbers ("" to list none)."""
        self.count += 1
        if self._kept is None or self.count <= self._kept:
            self.shown.append(f"{place}: {reason}")
        elif lines and self.count <= _LISTED_LINES:
            self._lines.append(lines)
        if reason in self._reasons:
            self._reasons[reason].add(place)
        elif len(self._reasons) < SHOWN_FAULTS:
            self._reasons[reason] = _Alike([place])

    def as_bad(self, name: str, usable: int) -> DataError:
        """The error for records of the source `name` that cannot be used; `usable` can."""
        head = f"{name} has {counted(self.count, 'bad record')}"
        head += "" if usable else " and no usable one"
        advice = ["correct them, or skip them with on_bad_record: skip"] if usable else []
        return DataError("\n".join([f"{head}:", *self._listed(), *advice]))

    def as_useless(self, name: str, usable: int) -> DataError:
        """The error for well-formed records from which nothing can be learnt."""
        head = f"{name}: {counted(self.count, 'record')} from which nothing can be learnt"
        head += ":" if usable else ", and no other:"
        advice = ["drop them with on_useless_pair: drop"] if usable else []
        return DataError("\n".join([head, *self._listed(), *advice]))

    def _listed(self) -> list[str]:
        """A line for each record shown, or for each reason if many records share one."""
        if any(alike.count > _MOST_ALIKE for alike in self._reasons.values()):
            lines = [f"{alike.places[0]}: {reason}{alike.others()}" for reason, alike in self._reasons.items()]
            left = self.count - sum(alike.count for alike in self._reasons.values())
        else:
            lines, left = self.shown[:SHOWN_FAULTS], self.count - SHOWN_FAULTS
        more = [f"... and {left} more{self._others()}"] if left > 0 else []
        return [f"  {line}" for line in [*lines, *more]]

    def _others(self) -> str:
        if not self._lines:
            return ""
        unlisted = ", ..." if self.count > _LISTED_LINES else ""
        return f", in lines {', '.join(self._lines)}{unlisted}"


@dataclass
class _Alike:
    """Records that are refused for the same reason: how many, and the places of the first ones."""

    places: list[str]
    count: int = 1

    def add(self, place: str) -> None:
        self.count += 1
        if len(self.places) <= _MOST_ALIKE:
            self.places.append(place)

    def others(self) -> str:
        """All but the first, in brackets; nothing if there is only one."""
        if self.count == 1:
            return ""
        unlisted = ", ..." if self.count > len(self.places) else ""
        return f" (and {self.count - 1:,} more: {', '.join(self.places[1:])}{unlisted})"


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
