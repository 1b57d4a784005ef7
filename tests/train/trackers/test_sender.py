"""Whatever a tracker does, the run goes on: failures are counted, told once, and never raised."""

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from posttrain.train.trackers import sender
from posttrain.train.trackers.sender import Failures, Sender
from posttrain.train.trackers.tracker import End, Kind, Opened, Remembered


@dataclass
class Notes:
    """A tracker in memory.

    Attributes:
        last: what it says that it has.
        breaks: what it raises, by what it is asked: "open", "close", or a step.
        slow_at: what it does not return from until `released`; `reached` says that it got there.
    """

    last: Mapping[Kind, int] | None = field(default_factory=dict[Kind, int])
    breaks: Mapping[str | int, BaseException] = field(default_factory=dict[str | int, BaseException])
    slow_at: str | int = ""
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    kept: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    known: Remembered | None = None
    end: End | None = None

    def _asked(self, what: str | int) -> None:
        if what == self.slow_at:
            self.reached.set()
            self.released.wait()
        if what in self.breaks:
            raise self.breaks[what]

    def open(self, remembered: Remembered | None) -> Opened:
        self._asked("open")
        self.known = remembered
        return Opened("in memory", {"id": "7"}, self.last)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._asked(step)
        self.kept.append((step, values))

    def close(self, end: End) -> None:
        self._asked("close")
        self.end = end


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def slow() -> Iterator[Notes]:
    """A tracker that is let go after the test."""
    notes = Notes()
    yield notes
    notes.released.set()


def in_time() -> float:
    return time.monotonic() + 60


def send(notes: Notes, said: list[str], **options: Any) -> Failures | None:
    """Send four steps, each with its number as a loss."""
    return started(notes, said, **options).close("finished", in_time())


def started(notes: Notes, said: list[str], **options: Any) -> Sender:
    sending = Sender("notes", notes, said.append, **options)
    for step in (1, 2, 3, 4):
        sending.send("train", step, {"train/loss": float(step)})
    return sending


def test_every_step_arrives_in_order_and_nothing_is_said_but_the_place(said: list[str]) -> None:
    notes = Notes()
    assert send(notes, said) is None
    assert notes.kept == [(step, {"train/loss": float(step)}) for step in (1, 2, 3, 4)]
    assert (notes.end, said) == ("finished", ["notes: in memory"])


def test_a_tracker_that_cannot_be_started_gets_nothing(said: list[str]) -> None:
    found = send(Notes(breaks={"open": OSError("no route")}), said)
    assert found == Failures(4, 4, "cannot be started, and gets nothing: no route")
    assert said == [
        "warning: notes cannot be started, and gets nothing: no route",
        "warning: notes lacks 4 of 4 lines of metrics.jsonl",
    ]


def test_a_step_that_fails_is_counted_and_the_next_one_is_sent(said: list[str]) -> None:
    notes = Notes(breaks={2: ValueError("full"), 3: RuntimeError("still full")})
    found = send(notes, said)
    assert found == Failures(4, 2, "failed at step 2: full")
    assert [step for step, _ in notes.kept] == [1, 4]
    assert [line for line in said if "warning" in line] == [
        "warning: notes failed at step 2: full",
        "warning: notes lacks 2 of 4 lines of metrics.jsonl",
    ]


def test_a_tracker_that_fails_at_the_end_has_everything(said: list[str]) -> None:
    assert send(Notes(breaks={"close": TimeoutError("gone")}), said) == Failures(4, 0, "failed at the end: gone")
    assert said[1:] == ["warning: notes failed at the end: gone"]


@pytest.mark.parametrize(("where", "lost"), [("open", 4), (3, 2)])
def test_a_tracker_that_hangs_is_not_waited_for(slow: Notes, said: list[str], where: str | int, lost: int) -> None:
    slow.slow_at = where
    sending = started(slow, said)
    slow.reached.wait()
    found = sending.close("finished", time.monotonic())
    assert found == Failures(4, lost, "is not done yet, and is no longer waited for")
    assert slow.end is None


def test_a_tracker_that_hangs_at_the_end_is_not_waited_for_either(slow: Notes, said: list[str]) -> None:
    slow.slow_at = "close"
    found = started(slow, said).close("finished", time.monotonic())
    assert found is not None and found.first_error == "is not done yet, and is no longer waited for"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_tracker_that_ends_its_thread_loses_what_is_left(said: list[str]) -> None:
    found = send(Notes(breaks={2: SystemExit(3)}), said)
    assert found is not None and (found.lines, found.not_sent) == (4, 3)


def test_a_tracker_that_takes_nothing_does_not_fill_the_memory(
    slow: Notes, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "_LONGEST_QUEUE", 2)
    slow.slow_at = "open"
    found = started(slow, said).close("finished", time.monotonic())
    assert found is not None and (found.lines, found.not_sent) == (4, 4)
    assert said[0] == "warning: notes has taken none of the last 2 lines; more are not kept for it"


def test_a_secret_in_an_error_is_not_shown(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a-key-that-nobody-sees")
    found = send(Notes(breaks={1: OSError("401 for a-key-that-nobody-sees at http://me:word@host/")}), said)
    assert found is not None and found.first_error == "failed at step 1: 401 for *** at http://***@host/"
    assert "nobody" not in "".join(said)


def test_what_the_tracker_has_from_before_a_resume_is_not_sent_again(said: list[str]) -> None:
    notes = Notes(last={"train": 3})
    sending = Sender("notes", notes, said.append, remembered={"id": "7"}, logged={"train": 4})
    for step in (3, 4):
        sending.send("train", step, {"train/loss": 0.5})
        sending.send("eval", step, {"eval/loss": 0.5})
    assert sending.close("stopped", in_time()) is None
    assert [(step, *values) for step, values in notes.kept] == [(3, "eval/loss"), (4, "train/loss"), (4, "eval/loss")]
    assert (notes.known, notes.end) == ({"id": "7"}, "stopped")


def test_for_a_tracker_that_cannot_tell_the_metrics_tell_what_it_has(said: list[str]) -> None:
    notes = Notes(last=None)
    assert send(notes, said, remembered={"id": "7"}, logged={"train": 3}) is None
    assert [step for step, _ in notes.kept] == [4]


def test_a_tracker_that_is_new_to_the_run_gets_every_step(said: list[str]) -> None:
    notes = Notes(last=None)
    assert send(notes, said, logged={"train": 3}) is None
    assert [step for step, _ in notes.kept] == [1, 2, 3, 4]


def test_a_tracker_whose_run_cannot_be_remembered_still_gets_everything(said: list[str]) -> None:
    def full(found: Remembered) -> None:
        raise OSError(28, "No space left on device")

    notes = Notes()
    found = send(notes, said, remember=full)
    assert found is not None and (found.not_sent, len(notes.kept)) == (0, 4)
    assert "No space left" in said[0]
