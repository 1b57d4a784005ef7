"""Run calls one after another beside the trainer, or at once in its own thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Lane:
    """Runs calls in the order in which they are submitted.

    Not an executor of the standard library: the interpreter waits for their threads when it ends, and a call may wait
    for a server for minutes.
    """

    def __init__(self, name: str, *, is_apart: bool) -> None:
        """`is_apart`: run the calls in a thread; otherwise `submit` returns only once the call has ended."""
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] | None = None
        if is_apart:
            self._calls = SimpleQueue()
            threading.Thread(target=_run_all, args=(self._calls,), name=name, daemon=True).start()

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Run a call; its result or error is in the future."""
        future: Future[T] = Future()
        if self._calls is None:
            _run(future, call)
        else:
            self._calls.put((future, call))
        return future


def _run_all(calls: "SimpleQueue[tuple[Future[Any], Callable[[], Any]]]") -> None:
    while True:
        _run(*calls.get())


def _run(future: "Future[Any]", call: Callable[[], Any]) -> None:
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - the caller gets it from the future
        future.set_exception(error)
