"""HTTP requests with a total deadline, a size limit and retries, sent from any thread."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx
from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

from posttrain.errors import ServerError

T = TypeVar("T")

_CLOSING_SECONDS = 5.0

# Exponential with full jitter, so that the clients of one server do not all retry at once.
_backoff = wait_random_exponential(multiplier=0.1, max=5.0)


class PassingError(Exception):
    """A request failed, but may succeed if it is repeated."""

    def __init__(self, message: str, wait_seconds: float = 0.0) -> None:
        """`wait_seconds`: the minimum wait that the server asks for."""
        super().__init__(message)
        self.wait_seconds = wait_seconds


class TooLargeError(Exception):
    """A response is larger than allowed."""


async def exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    content: bytes | None,
    headers: Mapping[str, str],
    seconds: float,
    max_bytes: int,
) -> tuple[httpx.Response, bytes]:
    """Send a request and read the body of its response.

    Args:
        seconds: deadline for the whole exchange; httpx's own timeouts restart with every byte.
        max_bytes: largest allowed body.

    Raises:
        TimeoutError: the exchange takes longer.
        TooLargeError: the body is larger.
        httpx.HTTPError, httpx.InvalidURL: there is no response, or a broken one.
    """
    # No compression: a small body could unpack to one that fills the memory.
    headers = {**headers, "Accept-Encoding": "identity"}
    async with asyncio.timeout(seconds), client.stream(method, url, content=content, headers=headers) as response:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                raise TooLargeError
    return response, bytes(body)


def retry_after(response: httpx.Response) -> float:
    """Seconds to wait by the Retry-After header, which holds a number of seconds or a date; 0 if neither."""
    header = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # also for a year out of range
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def passing_error(state: RetryCallState) -> PassingError:
    """The error because of which tenacity is about to repeat a request."""
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, PassingError)  # nothing else is retried
    return error


def pause(state: RetryCallState) -> float:
    """Seconds until the next try: what the server asked for plus a random back-off."""
    return passing_error(state).wait_seconds + _backoff(state)


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
