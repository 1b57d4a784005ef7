"""Watchdogs: each looks at a step's line of metrics.jsonl, and says what is wrong and what to do, or nothing.

What they know of earlier steps they know from those lines alone. So a resumed run shows them the lines that are there,
and they go on as those of the run that was left alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = Mapping[str, Any]
"""A line of metrics.jsonl; a number that was not finite is None."""

# Optimizer steps from one sentence of a watchdog to its next: 50 lines of each kind at most in 10,000 steps.
SAY_AGAIN = 200


class Watchdog(Protocol):
    """Sees every optimizer step of a run once, in order."""

    @property
    def name(self) -> str:
        """What metrics.jsonl calls it."""
        ...

    def look(self, row: Row) -> str | None:
        """What is wrong at this step and what to do, in one sentence; None where nothing is."""
        ...


class Watch:
    """The watchdogs of a run: which of them warn at a step, and which of that is said.

    Each is said when it first warns, and again where `SAY_AGAIN` steps have passed since it was last said.
    """

    def __init__(self, watchdogs: Sequence[Watchdog]) -> None:
        self._watchdogs = watchdogs
        self._counts: Counter[str] = Counter()
        self._said: dict[str, int] = {}

    def look(self, row: Row) -> tuple[list[str], list[str]]:
        """The names of those that warn, and the lines to be said."""
        names, lines = [], []
        for watchdog in self._watchdogs:
            sentence = watchdog.look(row)
            if sentence is None:
                continue
            names.append(watchdog.name)
            self._counts[watchdog.name] += 1
            if self._is_to_be_said(watchdog.name, row["step"]):
                count = self._counts[watchdog.name]
                so_far = f" ({watchdog.name}, in {count} steps so far)" if count > 1 else f" ({watchdog.name})"
                lines.append(f"warning at step {row['step']}: {sentence}{so_far}")
        return names, lines

    def summary(self) -> str | None:
        """How often each has warned, in one line; None where none has."""
        if not self._counts:
            return None
        told = ", ".join(f"{name} in {count}" for name, count in self._counts.most_common())
        return f"warnings, in steps: {told}; metrics.jsonl has which, docs/watchdogs.md what they mean"

    def _is_to_be_said(self, name: str, step: int) -> bool:
        if name in self._said and step - self._said[name] < SAY_AGAIN:
            return False
        self._said[name] = step
        return True
