"""Code of a grading process: set up the graders once, then score chunks of completions.

Nothing that a grader or a completion does may affect anything outside this process: its memory is limited, what it
prints goes to the error stream, a process that it forks ends at once, and a timer interrupts it. If the timer cannot,
the process is killed from outside.
"""

import fcntl
import gc
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from posttrain.dataserver.graders.base import Abstain, Grader, checked_score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.rewards import Judgement
from posttrain.errors import ToolkitError

_LONGEST_DETAIL = 500


class Task(NamedTuple):
    """One completion to score, as sent to a worker."""

    graders: tuple[str, ...]
    item: GradeInput
    """Not split yet, so that no text is sent twice."""


class RowCheck(NamedTuple):
    """One row whose gold answer is to be checked."""

    row: int
    graders: tuple[str, ...]
    item: GradeInput
    """Its record and gold, without a completion."""


class RowFault(NamedTuple):
    """A row that a grader cannot use."""

    row: int
    grader: str
    reason: str


@dataclass(frozen=True)
class Setup:
    """What a worker needs to know; sent once."""

    graders: Mapping[str, Grader]
    seconds: float
    """For all graders together on one completion."""
    memory_bytes: int
    hidden: frozenset[str] = frozenset()
    """Environment variables that graders must not see."""


class _TimedOut(BaseException):
    """Not an Exception, so that a grader that catches every Exception does not catch it."""


Marks = Any
"""Memory shared by the workers and the server, with a place for each chunk of completions in progress: the pid of the
worker that has it and, in the lowest MARK_BITS, how many of its completions the worker has begun."""

MARK_BITS = 8

_setup: Setup
_marks: Marks


def start_worker(setup: Setup, marks: Marks) -> None:
    """Prepare this process; called once by the pool. `marks`: where it reports its progress."""
    global _setup, _marks
    _setup, _marks = setup, marks
    for name in setup.hidden:
        os.environ.pop(name, None)
    resource.setrlimit(resource.RLIMIT_AS, (setup.memory_bytes, setup.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the server ends us
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool's own handler would wait for code in C
    signal.signal(signal.SIGALRM, _on_alarm)
    os.register_at_fork(after_in_child=lambda: os._exit(1))
    _end_with_server()
    spare_garbage_collector()


def spare_garbage_collector() -> None:
    """Look for cycles less often, and not in objects that stay: grading makes many small objects, hardly any cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def check_graders() -> list[str]:
    """Load the graders; return one line for each that cannot be loaded, with the reason."""
    problems = []
    for name, grader in _setup.graders.items():
        try:
            grader.load()
        except ToolkitError as error:
            problems.append(f"graders.{name}: {error}")
    return problems


def check_rows(rows: Sequence[RowCheck]) -> list[RowFault]:
    """Those of `rows` that a grader cannot use."""
    faults = []
    for row in rows:
        for name in row.graders:
            try:
                with _deadline(_setup.seconds):
                    _setup.graders[name].check_row(row.item)
            except _TimedOut:
                faults.append(RowFault(row.row, name, f"the check took longer than {_setup.seconds:g} s"))
            except Exception as error:  # noqa: BLE001  # whatever a grader raises is the fault of this row
                faults.append(RowFault(row.row, name, _reason(error)))
    return faults


def grade(tasks: Sequence[Task], place: int) -> list[dict[str, Judgement]]:
    """Score completions, at least one, until the time for a single one is up; the rest is left for another call.

    Args:
        place: where in the marks to report which of them is being scored.
    """
    begin = time.monotonic()
    done: list[dict[str, Judgement]] = []
    for number, task in enumerate(tasks):
        if done and time.monotonic() - begin > _setup.seconds:
            break
        _marks[place] = os.getpid() << MARK_BITS | number + 1
        done.append(_grade_one(task))
    return done


def _grade_one(task: Task) -> dict[str, Judgement]:
    item = task.item.split()
    judgements: dict[str, Judgement] = {}
    end = time.monotonic() + _setup.seconds
    for name in task.graders:
        judgements[name] = _judge(_setup.graders[name], item, end - time.monotonic())
    return judgements


def _judge(grader: Grader, item: GradeInput, seconds: float) -> Judgement:
    begin = time.perf_counter()
    try:
        if seconds <= 0:
            raise _TimedOut
        with _deadline(seconds):
            score = checked_score(grader.score(item))
        return Judgement("ok", score.value, _milliseconds(begin), shown(score.detail))
    except Abstain as error:
        return Judgement("abstain", None, _milliseconds(begin), _reason(error))
    except _TimedOut:
        reason = "timeout"
    except MemoryError:
        reason = "out of memory"
    except RecursionError:
        reason = "nested too deep"
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001  # it costs this completion its score
        reason = f"{type(error).__name__}: {_reason(error)}"
    return Judgement("error", None, _milliseconds(begin), shown(reason))


def _milliseconds(begin: float) -> float:
    return (time.perf_counter() - begin) * 1000


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    # It fires repeatedly, for code that swallows the first exception.
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.05)
    try:
        yield
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except _TimedOut:  # it fired on the way here
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise


def _on_alarm(signal_number: int, frame: object) -> None:
    raise _TimedOut


def _reason(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return shown(lines[0]) if lines else type(error).__name__


def shown(text: str) -> str:
    """The start of what a grader says, with a question mark for each lone surrogate, which cannot be encoded."""
    return text[:_LONGEST_DETAIL].encode(errors="replace").decode()


def _end_with_server() -> None:
    """End this process when the server ends, even if the server is killed."""
    server = parent_process()
    if server is None:
        return

    def watch() -> None:
        wait([server.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    # A grader in C may keep Python threads from running. Linux then ends the process, by a signal that nothing handles.
    fcntl.fcntl(server.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(server.sentinel, fcntl.F_SETFL, fcntl.fcntl(server.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
