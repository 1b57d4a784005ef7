"""Report optimizer steps to the dataserver's page from a background thread, without delaying or failing training."""

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import NamedTuple, SupportsFloat

from posttrain.dataserver.schemas import Origin
from posttrain.dataserver.step_reports import MAX_NAME_CHARS, MAX_NUMBERS, MAX_VERDICT_CHARS, GroupReport
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.transport import WrongServerError

logger = logging.getLogger(__name__)


class ReportedGroup(NamedTuple):
    """A group of completions that was asked for a step or trained by it; see `GroupReport`."""

    iteration: int
    slot: int
    attempt: int
    sample_id: str
    dataset: str
    verdict: str
    """The kind of the filter that rejected it, and perhaps a colon and more; empty if it was accepted."""
    trained: bool
    origin: Origin
    mean_reward: float | None
    age: int
    """Optimizer steps between the weights that sampled it and the step."""


class _Step(NamedTuple):
    number: int
    numbers: Mapping[str, SupportsFloat | None]
    groups: tuple[ReportedGroup, ...]


class StepReporter:
    """A bounded queue of reports, and a thread that sends each once. What cannot be sent is dropped, with a warning.

    A run needs one, in its main process. The first report that arrives makes the server forget what the run reported of
    later steps before it was resumed.
    """

    def __init__(self, client: DataserverClient, most_waiting: int = 64) -> None:
        """`client`: to be closed after the reporter. `most_waiting`: reports; more are dropped."""
        self._client = client
        self._most_waiting = most_waiting
        self._waiting: deque[_Step] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._is_refused = False
        self._is_first = True
        self._has_warned = False
        self.dropped = 0
        """Reports that were not sent, and will not be."""
        self._thread = threading.Thread(target=self._work, name="step reports", daemon=True)
        self._thread.start()

    def report(
        self, step: int, numbers: Mapping[str, SupportsFloat | None], groups: Iterable[ReportedGroup] = ()
    ) -> None:
        """Queue the report of an optimizer step, for which it neither waits nor raises.

        Args:
            numbers: as logged, such as `async/age_mean`; without a value if not finite. The first 200 names of at most
                80 characters are sent.
            groups: all that were asked for the step or trained by it.
        """
        made = _Step(step, dict(numbers), tuple(groups))
        with self._changed:
            if self._closing or self._is_refused:
                self.dropped += 1
            elif len(self._waiting) >= self._most_waiting:
                self._drop(1, f"{self._most_waiting} reports already wait")
            else:
                self._waiting.append(made)
                self._changed.notify_all()

    def close(self, wait_seconds: float) -> None:
        """Send what is queued for at most `wait_seconds`, drop the rest, and stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait_seconds)
        with self._changed:
            if self._waiting:
                self._drop(len(self._waiting), f"the run has ended, with {len(self._waiting)} reports not sent")
                self._waiting.clear()

    def _work(self) -> None:
        while (step := self._next()) is not None:
            try:
                self._client.report_step(step.number, _bounded(step.numbers), _groups(step.groups), self._is_first)
            except Exception as error:  # noqa: BLE001  # training goes on whatever happens to its reports
                self._fail(error)
            else:
                with self._changed:
                    self._is_first = self._has_warned = False

    def _next(self) -> _Step | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _fail(self, error: Exception) -> None:
        with self._changed:
            lost = 1
            if isinstance(error, WrongServerError):
                self._is_refused = True
                lost += len(self._waiting)
                self._waiting.clear()
            self._drop(lost, str(error))

    def _drop(self, count: int, reason: str) -> None:
        """Count dropped reports; the first since one was sent get a warning."""
        self.dropped += count
        if not self._has_warned:
            self._has_warned = True
            logger.warning("steps are missing on the dataserver's page, training goes on: %s", reason)


def _bounded(numbers: Mapping[str, SupportsFloat | None]) -> dict[str, float | None]:
    values = {name: None if value is None else float(value) for name, value in numbers.items()}
    short = [name for name in values if 0 < len(name) <= MAX_NAME_CHARS][:MAX_NUMBERS]
    return {name: _finite(values[name]) for name in short}


def _groups(groups: Iterable[ReportedGroup]) -> list[GroupReport]:
    return [
        GroupReport(
            **group._replace(
                verdict=group.verdict[:MAX_VERDICT_CHARS], mean_reward=_finite(group.mean_reward)
            )._asdict()
        )
        for group in groups
    ]


def _finite(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None
