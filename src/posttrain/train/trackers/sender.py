"""Send a run's numbers to a tracker from a thread of its own, so that nothing it does delays or ends the run."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from queue import Full, Queue
from typing import NamedTuple

from posttrain.base.secrets import without_secrets
from posttrain.base.text import clipped, counted, first_line
from posttrain.train.trackers.tracker import End, Kind, Remembered, Tracker

# About 20 MB. A tracker that is away for longer loses lines.
_LONGEST_QUEUE = 10_000


class _Line(NamedTuple):
    kind: Kind
    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class Failures:
    """What went wrong with a tracker.

    Attributes:
        lines: how many lines of metrics.jsonl it was to get.
        not_sent: how many of them it did not take.
    """

    lines: int
    not_sent: int
    first_error: str


class Sender:
    """The thread of a tracker, and a bounded queue of lines, each of which is sent once.

    The first failure is told at once, and their number at the end.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        say: Callable[[str], None],
        *,
        remembered: Remembered | None = None,
        remember: Callable[[Remembered], None] = lambda found: None,
        logged: Mapping[Kind, int] = {},
    ) -> None:
        """Start the thread.

        Args:
            say: shows a line to the user.
            remembered: what `remember` was given before the resume; None if the tracker is new to the run.
            logged: the last steps of metrics.jsonl before the resume, for a tracker that cannot tell its own.
        """
        self._name = name
        self._tracker = tracker
        self._say = say
        self._remembered, self._remember = remembered, remember
        self._logged = logged if remembered is not None else {}
        self._lines: Queue[_Line | None] = Queue(_LONGEST_QUEUE)
        self._end: End = "failed"
        self._handed = self._sent = 0
        self._first_error = ""
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def send(self, kind: Kind, step: int, values: Mapping[str, float]) -> None:
        """Send the numbers of a step soon."""
        self._handed += 1
        try:
            self._lines.put_nowait(_Line(kind, step, values))
        except Full:
            self._failed(f"has taken none of the last {counted(_LONGEST_QUEUE, 'line')}; more are not kept for it")

    def close(self, end: End, until: float) -> Failures | None:
        """Wait until everything is sent, but not longer than `until`, a reading of `time.monotonic`."""
        self._end = end
        with suppress(Full):
            self._lines.put(None, timeout=max(0.0, until - time.monotonic()))
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._failed("is not done yet, and is no longer waited for")
        lost = self._handed - self._sent
        if lost:
            self._say(f"warning: {self._name} lacks {lost:,} of {counted(self._handed, 'line')} of metrics.jsonl")
        return Failures(self._handed, lost, self._first_error) if lost or self._first_error else None

    def _work(self) -> None:
        try:
            opened = self._tracker.open(self._remembered)
        except Exception as error:  # noqa: BLE001  # whatever a tracker raises, the run goes on
            return self._failed("cannot be started, and gets nothing", error)
        try:
            self._remember(opened.remembered)
        except OSError as error:
            self._failed("would get another run after a resume", error)
        self._say(without_secrets(f"{self._name}: {opened.place}"))
        last = self._logged if opened.last is None else opened.last
        while (line := self._lines.get()) is not None:
            self._log(line, last)
        try:
            self._tracker.close(self._end)
        except Exception as error:  # noqa: BLE001
            self._failed("failed at the end", error)

    def _log(self, line: _Line, last: Mapping[Kind, int]) -> None:
        """Send a line, unless the tracker has it."""
        if line.step > last.get(line.kind, -1):
            try:
                self._tracker.log(line.values, line.step)
            except Exception as error:  # noqa: BLE001
                return self._failed(f"failed at step {line.step}", error)
        self._sent += 1

    def _failed(self, what: str, error: Exception | None = None) -> None:
        """Tell the first failure."""
        if not self._first_error:
            self._first_error = clipped(without_secrets(what if error is None else f"{what}: {first_line(error)}"))
            self._say(f"warning: {self._name} {self._first_error}")
