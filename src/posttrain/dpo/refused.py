"""Preference records that are bad or useless, and the errors that tell of all of them at once."""

from posttrain.base.text import clipped
from posttrain.data.bad_records import SHOWN_FAULTS, refusal
from posttrain.errors import DataError

# Of how many records an error tells at least the lines.
_LISTED_LINES = 10_000


class Refused:
    """Records that are not taken.

    Attributes:
        count: how many there are.
        shown: one line `place: reason` for each of the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shown: list[str] = []
        self._lines: list[str] = []

    def add(self, place: str, lines: str, error: DataError) -> None:
        """One more, by its place as a message names it, and by its lines in short."""
        self.count += 1
        if self.count <= SHOWN_FAULTS:
            self.shown.append(f"{place}: {clipped(str(error))}")
        elif self.count <= _LISTED_LINES:
            self._lines.append(lines)

    def as_bad(self, name: str, usable: int) -> DataError:
        """As for SFT, but those that are too many to be shown in full are told by their lines."""
        return refusal(name, self.shown, usable, count=self.count, others=self._others())

    def as_useless(self, name: str, usable: int) -> DataError:
        """What is said of well-formed records."""
        shown = list(self.shown)
        if self.count > SHOWN_FAULTS:
            shown.append(f"... and {self.count - SHOWN_FAULTS} more{self._others()}")
        head = f"{name}: {self.count} record{'s' * (self.count > 1)} from which nothing can be learnt"
        head += ":" if usable else ", and no other:"
        advice = ["leave them out by on_useless_pair: drop"] if usable else []
        return DataError("\n".join([head, *(f"  {line}" for line in shown), *advice]))

    def _others(self) -> str:
        unlisted = ", ..." if self.count > _LISTED_LINES else ""
        return f", in lines {', '.join(self._lines)}{unlisted}"
