"""What a tracker is told about a run, and what it can do: open, log and close.

Any of it may raise any error, or wait for a network: `sender` calls it in a thread of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Kind = Literal["train", "eval"]
"""Numbers of an optimizer step, or of an evaluation; also how their names begin."""

End = Literal["finished", "stopped", "failed"]
"""How training ended; a stopped run is meant to be resumed."""

Remembered = Mapping[str, str]
"""What the run directory keeps so that a resumed run continues the tracker's own run."""

CLOSE_SECONDS = 30.0
"""How long the end of a run waits for its trackers."""


@dataclass(frozen=True)
class TrackedRun:
    """A run, for its trackers.

    Attributes:
        path: the run's folder, whose name is that of the run.
        config: the resolved config as plain data.
        done: optimizer steps before the first one to come.
    """

    path: Path
    config: Mapping[str, Any]
    done: int = 0

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.name


@dataclass(frozen=True)
class Opened:
    """A tracker that takes numbers.

    Attributes:
        place: where to look at them, for a person.
        last: the last step of each kind that the tracker has from before the resume, in which case it is not sent
            again; None if the tracker cannot tell.
    """

    place: str
    remembered: Remembered
    last: Mapping[Kind, int] | None


class Tracker(Protocol):
    """Keeps the numbers of a run in one of the tracker's own runs."""

    def open(self, remembered: Remembered | None) -> Opened:
        """Start a run of the tracker, or continue the one that is `remembered`."""
        ...

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keep the numbers of a step, by name."""
        ...

    def close(self, end: End) -> None:
        """Return once everything is kept."""
        ...
