"""Run coroutines from any thread, in one event loop that has a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from posttrain.errors import ServerError

T = TypeVar("T")

_CLOSING_SECONDS = 5.0


class LoopThread:
    """An event loop in a thread that starts with the first coroutine, and ends with the process at the latest."""

    def __init__(self, name: str) -> None:
        """`name`: of the thread, and of what is closed in messages."""
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result of a coroutine; an interrupt of the caller cancels it.

        Raises:
            ServerError: the loop has been closed, before or meanwhile.
        """
        with self._lock:  # so that nothing is submitted after `close` has begun
            if self._is_closed:
                work.close()
                raise self._closed()
            future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except CancelledError:
            raise self._closed() from None
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what is running, wait for `last`, and end the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            was_closed, self._is_closed = self._is_closed, True
        if was_closed or loop is None or thread is None:
            last.close()
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(last), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(_CLOSING_SECONDS)

    def _closed(self) -> ServerError:
        return ServerError(f"the {self._name} was closed")

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_work, args=[self._loop], name=self._name, daemon=True)
            self._thread.start()
        return self._loop


def _work(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _cancel_others(last: Coroutine[Any, Any, None]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last
