"""Processes: the rank of this one, by the variables that torchrun and accelerate set, and helpers that share work."""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Generic, TypeVar

from posttrain.errors import RunError

T = TypeVar("T")
R = TypeVar("R")


def process_count() -> int:
    """Number of processes that train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Whether this is rank 0, the only process that writes files and terminal output."""
    return process_rank() == 0


def process_rank() -> int:
    """Rank of this process, from 0."""
    return int(os.environ.get("RANK", "0"))


def share_of_rank(total: int) -> range:
    """This rank's part of `total` things; the parts of all ranks, in rank order, are all of them."""
    rank, ranks = process_rank(), process_count()
    return range(total * rank // ranks, total * (rank + 1) // ranks)


def usable_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worked_in_order(work: Callable[[T], R], items: Iterable[T], processes: int) -> Generator[R, None, None]:
    """What `work` makes of each item, in order, by forked processes; items and results are pickled, `work` is not.

    At most one item more than there are processes is in memory. The processes end with the iteration, and also when
    this process is killed. With none, this process does the work.

    Raises:
        RunError: a process was killed.
        Exception: whatever `items` or `work` raises.
    """
    if not processes:
        yield from map(work, items)
        return
    helpers: list[_Helper[T, R]] = []
    asked = answered = 0
    try:
        for item in items:
            if asked < processes:
                helpers.append(_Helper(work, [each.line for each in helpers]))
            else:
                yield helpers[answered % processes].answer()
                answered += 1
            helpers[asked % processes].ask(item)
            asked += 1
        for place in range(answered, asked):
            yield helpers[place % processes].answer()
    finally:
        for helper in helpers:
            helper.end()


class _Helper(Generic[T, R]):
    """A forked process that works on one item after another."""

    def __init__(self, work: Callable[[T], R], others: Sequence[Connection]) -> None:
        """`others`: this process's ends of the lines to earlier helpers, which the fork has too."""
        self.line, theirs = Pipe()
        # Each line ends only when all its copies are closed: by that a helper sees that this process is gone.
        arguments = (work, theirs, [self.line, *others])
        self._process: BaseProcess = get_context("fork").Process(target=_help, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, item: T) -> None:
        with self._told_if_gone():
            self.line.send(item)

    def answer(self) -> R:
        with self._told_if_gone():
            result, error = self.line.recv()
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self.line.close()
        self._process.terminate()
        self._process.join()

    @contextmanager
    def _told_if_gone(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, ConnectionError):
            self._process.join()
            raise RunError(
                f"a helping process ended with code {self._process.exitcode}; if it was killed, memory may have run out"
            ) from None


def _help(work: Callable[[T], R], line: Connection, others: Sequence[Connection]) -> None:
    for each in others:
        each.close()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a fork has none of the threads that tokenizers would wait for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too, but the first one decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with suppress(EOFError, ConnectionError):
        while True:
            item = line.recv()
            try:
                answer = work(item), None
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is wanted
                answer = None, error
            line.send(answer)
