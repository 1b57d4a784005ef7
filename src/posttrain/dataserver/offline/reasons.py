"""Why completions have no score, counted."""

from collections import Counter

from posttrain.dataserver.offline.wording import one_line
from posttrain.dataserver.schemas import GradeResult

_SHOWN = 8
_LONGEST = 160
# Reasons that quote a completion are all different; those beyond are counted without their words.
_REMEMBERED = 10_000


class Reasons:
    """Counts reasons, and remembers where each came first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._places: dict[str, str] = {}

    @property
    def total(self) -> int:
        """How many were counted."""
        return self._counts.total()

    def add(self, reason: str, place: str) -> None:
        """Count a reason of the completion that stands at `place`."""
        line = one_line(reason, _LONGEST)
        if line not in self._counts and len(self._counts) >= _REMEMBERED:
            line = "other reasons"
        self._counts[line] += 1
        self._places.setdefault(line, place)

    def add_result(self, result: GradeResult, place: str) -> None:
        """Count why graders gave no score; where none of them was asked, why there is no reward."""
        missing = [(name, each) for name, each in result.components.items() if each.score is None]
        for name, component in missing:
            self.add(f"{component.status}: {name}: {component.detail or 'no reason given'}", place)
        if result.reward is None and not missing:
            self.add(f"{result.status}: {result.reason}", place)

    def lines(self) -> list[str]:
        """The most common ones first."""
        shown = self._counts.most_common(_SHOWN)
        lines = [f"  {count:>7,}  {reason} (first: {self._places[reason]})" for reason, count in shown]
        hidden = len(self._counts) - len(shown)
        return [*lines, f"           ... and {hidden:,} other reason{'s' * (hidden > 1)}"] if hidden else lines
