"""HTTP requests with a total deadline, a size limit and retries."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

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
