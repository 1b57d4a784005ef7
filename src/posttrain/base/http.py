"""HTTP requests with a total deadline, a size limit and retries."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from tenacity import RetryCallState
from tenacity.wait import wait_random_exponential

# Exponential with full jitter: many clients of one server do not come back all at once.
_backoff = wait_random_exponential(multiplier=0.1, max=5.0)


class PassingError(Exception):
    """There is no good answer, and there may be one if the request is repeated."""

    def __init__(self, message: str, wait_seconds: float = 0.0) -> None:
        """`wait_seconds`: what the server asks to wait at least."""
        super().__init__(message)
        self.wait_seconds = wait_seconds


class TooLargeError(Exception):
    """An answer is larger than it may be."""


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
    """Send a request, and read the body of its answer.

    Args:
        seconds: for all of it, however slowly the bytes go and come; httpx's own timeouts begin anew with every byte.
        max_bytes: how large the body may be.

    Raises:
        TimeoutError: it takes longer.
        TooLargeError: the body is larger.
        httpx.HTTPError, httpx.InvalidURL: there is no answer, or a broken one.
    """
    # Nothing packed, which could be small on its way and fill the memory here.
    headers = {**headers, "Accept-Encoding": "identity"}
    async with asyncio.timeout(seconds), client.stream(method, url, content=content, headers=headers) as response:
        body = bytearray()
        async for part in response.aiter_raw():
            body += part
            if len(body) > max_bytes:
                raise TooLargeError
    return response, bytes(body)


def retry_after(response: httpx.Response) -> float:
    """The seconds of the Retry-After header, which is a number of them or a date; 0 where there is neither."""
    header = response.headers.get("Retry-After", "")
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # also a year that no calendar has
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def passing_error(state: RetryCallState) -> PassingError:
    """Why tenacity is about to repeat a request."""
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, PassingError)  # nothing else is repeated
    return error


def pause(state: RetryCallState) -> float:
    """Seconds until the next try: what the server asked for, and a random back-off."""
    return passing_error(state).wait_seconds + _backoff(state)
