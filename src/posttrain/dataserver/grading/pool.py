"""A pool of grading processes that survives timeouts and crashes.

Completions are sent in chunks, because a message costs more than a cheap grader. A worker reports which completion it
is on, so that only the one that kills it or takes too long loses its score. The others of the chunk are then sent one
by one.
"""

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TaskTimeout
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from typing import Any, NamedTuple, TypeVar

from pebble import ProcessExpired, ProcessPool

from posttrain.dataserver.grading import worker
from posttrain.dataserver.grading.rewards import Judgement
from posttrain.dataserver.grading.worker import MARK_BITS, Marks, RowCheck, RowFault, Setup, Task
from posttrain.errors import RunError

logger = logging.getLogger(__name__)

T = TypeVar("T")
A = TypeVar("A", Task, RowCheck)

# Added to the timer's deadline before a worker is killed: for code that ignores the timer, and for the pool, which
# polls every 0.1 s.
_GRACE_SECONDS = 0.5

_LARGEST_CHUNK = 64

_SECONDS_BETWEEN_LOOKS = 0.1
# The last answer of a worker may still be in transit when the worker has ended.
_LOOKS_AT_THE_DEAD = 5

# More than the chunks that are ever in progress, so that the place of an abandoned one is not reused soon.
_PLACES = 4096


class _Mark(NamedTuple):
    """A worker's last report on a chunk."""

    process: int
    completion: int
    """Position in the chunk of the completion that the worker is on."""


class WorkerDiedError(Exception):
    """A worker was killed at its deadline, or ended by itself."""


class GradingPool:
    """`count` grading processes."""

    def __init__(self, count: int, setup: Setup, tasks_per_worker: int, preload: Sequence[str] = ()) -> None:
        """`preload`: modules to import before workers are forked."""
        self.graders = frozenset(setup.graders)
        """The names of its graders."""
        self._count = count
        self._setup = setup
        self._tasks_per_worker = tasks_per_worker
        self._context = multiprocessing.get_context("forkserver")
        # Each new process repeats the imports of the command; preloaded, they cost next to nothing.
        commands = [name for name in sys.modules if name.startswith("posttrain.cli.")]
        self._context.set_forkserver_preload([worker.__name__, *commands, *preload])
        self._marks: Marks = self._context.RawArray("Q", _PLACES)
        self._free_places = deque(range(_PLACES))
        self._pool = self._new_pool()
        self._is_closed = False
        self.deaths = 0
        """How many workers were killed or ended by themselves."""

    async def grade(self, tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]) -> None:
        """Grade all tasks, calling `done(number of the task, judgements)` as each is done."""
        async with asyncio.TaskGroup() as group:
            for chunk in _chunks(len(tasks), self._count):
                group.create_task(self._grade_chunk(chunk, tasks, done))

    async def check_graders(self) -> list[str]:
        """Why graders cannot be used, one line each."""
        try:
            return await self._run(worker.check_graders, (), 120.0)
        except WorkerDiedError as error:
            return [f"graders: loading them failed: {error}"]

    async def check_rows(self, rows: Sequence[RowCheck]) -> list[RowFault]:
        """The rows that a grader cannot use."""
        try:
            return await self._run(worker.check_rows, (list(rows),), self._setup.seconds * len(rows) + _GRACE_SECONDS)
        except WorkerDiedError as error:
            if len(rows) == 1:
                return [RowFault(rows[0].row, name, f"checking it failed: {error}") for name in rows[0].graders]
        return [fault for row in rows for fault in await self.check_rows([row])]

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._is_closed = True
        # A grader may have suspended the process that workers are forked from; then nothing would end.
        os.killpg(os.getpgrp(), signal.SIGCONT)
        self._pool.stop()
        self._pool.join()

    async def _grade_chunk(
        self, chunk: Sequence[int], tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]
    ) -> None:
        left = list(chunk)
        while left:
            while not self._free_places:
                await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)
            place = self._free_places.popleft()
            self._marks[place] = 0
            try:
                # The last completion may begin just before the time for one is up.
                seconds = self._setup.seconds * min(len(left), 2) + 2 * _GRACE_SECONDS
                answers = await self._run(worker.grade, ([tasks[number] for number in left], place), seconds, place)
            except WorkerDiedError as error:
                mark = self._mark(place)
                guilty = left[0] if len(left) == 1 else left[mark.completion] if mark is not None else None
                async with asyncio.TaskGroup() as group:
                    for number in left:
                        if number == guilty:
                            failed = Judgement("error", None, 0.0, str(error))
                            done(number, dict.fromkeys(tasks[number].graders, failed))
                        else:
                            group.create_task(self._grade_chunk([number], tasks, done))
                return
            finally:
                self._free_places.append(place)
            for number, judgements in zip(left, answers, strict=False):
                done(number, judgements)
            left = left[len(answers) :]

    async def _run(
        self, function: Callable[..., T], arguments: tuple[Any, ...], seconds: float, place: int | None = None
    ) -> T:
        """Run a function in a worker, within `seconds`; with a `place`, each of its completions has a deadline too."""
        for _ in range(3):
            pool = self._pool
            try:
                return await self._outcome(pool, pool.schedule(function, args=arguments, timeout=seconds), place)
            except TaskTimeout:
                self.deaths += 1
                raise WorkerDiedError("timeout") from None
            except ProcessExpired as error:
                self.deaths += 1
                raise WorkerDiedError(f"the grading process died (exit code {error.exitcode})") from None
            except (BrokenProcessPool, RuntimeError):
                if self._is_closed:
                    raise RunError("the grading processes were stopped") from None
                # A worker that dies between two tasks breaks the whole pool.
                if self._pool is pool:
                    logger.warning("restarting the grading processes")
                    pool.stop()
                    self._pool = self._new_pool()
        raise RunError("the grading processes exit as soon as they start; see the log for their output")

    async def _outcome(self, pool: ProcessPool, scheduled: Future[T], place: int | None) -> T:
        """Wait for the answer of a task, and watch its worker. The pool itself does not report that it broke while the
        task was on its way to a worker, nor that a worker ended as if it were done."""
        future = asyncio.wrap_future(scheduled)
        seen, since, dead_looks = None, time.monotonic(), 0
        try:
            while not (await asyncio.wait({future}, timeout=_SECONDS_BETWEEN_LOOKS))[0]:
                if not pool.active:
                    raise BrokenProcessPool("the grading processes ended before the task began")
                mark = self._mark(place) if place is not None else None
                if mark != seen:
                    seen, since = mark, time.monotonic()
                elif mark is not None:
                    dead_looks += not _is_alive(mark.process)
                    if dead_looks == _LOOKS_AT_THE_DEAD:
                        raise ProcessExpired("ended as if it were done", code=0, pid=mark.process)
                    if time.monotonic() - since > self._setup.seconds + _GRACE_SECONDS:
                        raise TaskTimeout
            return future.result()
        finally:
            future.cancel()

    def _mark(self, place: int) -> _Mark | None:
        """The last report on the chunk at this place; None if no worker has begun it."""
        value = self._marks[place]
        return _Mark(value >> MARK_BITS, value % 2**MARK_BITS - 1) if value else None

    def _new_pool(self) -> ProcessPool:
        _start_fork_server(self._setup.hidden)
        return ProcessPool(
            max_workers=self._count,
            max_tasks=self._tasks_per_worker,
            initializer=worker.start_worker,
            initargs=(self._setup, self._marks),
            context=self._context,
        )


def _start_fork_server(hidden: Iterable[str]) -> None:
    """Start the process that workers are forked from, without the environment variables hidden from them: the system
    shows the initial environment of a process for as long as it runs."""
    kept = {name: os.environ.pop(name) for name in hidden if name in os.environ}
    try:
        forkserver.ensure_running()
    finally:
        os.environ.update(kept)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _chunks(count: int, workers_count: int) -> list[range]:
    """Ranges of equal length: two per worker, unless they would be longer than `_LARGEST_CHUNK`."""
    size = max(1, min(_LARGEST_CHUNK, -(-count // (2 * workers_count))))
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


class GradingPools:
    """Grading pools that each have some of the graders; no grader can affect the processes of another pool."""

    def __init__(self, pools: Sequence[GradingPool]) -> None:
        """Each grader is in one of them."""
        self._pools = pools

    @property
    def deaths(self) -> int:
        """How many workers were killed or ended by themselves."""
        return sum(pool.deaths for pool in self._pools)

    async def grade(self, tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]) -> None:
        """Grade all tasks, calling `done(number of the task, judgements)` as graders are done: once per pool for a task
        whose graders are in several."""
        async with asyncio.TaskGroup() as group:
            for pool in self._pools:
                group.create_task(_grade(pool, tasks, done))

    async def check_graders(self) -> list[str]:
        """Why graders cannot be used, one line each."""
        return [
            line for lines in await asyncio.gather(*(pool.check_graders() for pool in self._pools)) for line in lines
        ]

    async def check_rows(self, rows: Sequence[RowCheck]) -> list[RowFault]:
        """The rows that a grader cannot use."""
        asked = [(pool, [row for _, row in _of(pool, rows)]) for pool in self._pools]
        found = await asyncio.gather(*(pool.check_rows(some) for pool, some in asked if some))
        return sorted((fault for faults in found for fault in faults), key=lambda fault: fault.row)

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        for pool in self._pools:
            pool.close()


async def _grade(
    pool: GradingPool, tasks: Sequence[Task], done: Callable[[int, Mapping[str, Judgement]], None]
) -> None:
    asked = _of(pool, tasks)
    if asked:
        await pool.grade([task for _, task in asked], lambda place, judged: done(asked[place][0], judged))


def _of(pool: GradingPool, asked: Sequence[A]) -> list[tuple[int, A]]:
    """The tasks or rows, with their numbers, that a pool has a grader for, each reduced to the pool's own graders."""
    own = ((number, each, tuple(filter(pool.graders.__contains__, each.graders))) for number, each in enumerate(asked))
    return [(number, each._replace(graders=graders)) for number, each, graders in own if graders]
