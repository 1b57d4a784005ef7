"""Calls to a service that may be slow, busy, broken or gone: limited, repeated where that can help, and given up."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar
from weakref import WeakKeyDictionary

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_random_exponential

from posttrain.dataserver.graders.remote import CallFailedError, RemoteGrader
from posttrain.errors import ConfigError

_WORTH_REPEATING = {429, 502, 503, 504}
_LONGEST_WAIT_SECONDS = 30.0
_LARGEST_REPLY_BYTES = 16 * 2**20

T = TypeVar("T")

_backoff = wait_random_exponential(multiplier=0.1, max=10.0)


class _PassingError(CallFailedError):
    """May not happen again if the call is repeated."""

    def __init__(self, message: str, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


@dataclass
class _Breaker:
    """Leaves a service alone after several failures in a row."""

    failures: int = 0
    resting_until: float = 0.0
    """On the monotonic clock: no call before it."""

    def admit(self, grader: RemoteGrader) -> None:
        if self.failures < grader.breaker_failures:
            return
        now = time.monotonic()
        if now < self.resting_until:
            raise CallFailedError(f"{grader.place} is left alone after {self.failures} failed calls in a row")
        # This call is the only one until it has come back, or until the time is over again.
        self.resting_until = now + grader.breaker_seconds

    def record(self, grader: RemoteGrader, succeeded: bool) -> None:
        self.failures = 0 if succeeded else self.failures + 1
        self.resting_until = time.monotonic() + grader.breaker_seconds


@dataclass
class Caller:
    """Calls one service for one grader, through one client."""

    grader: RemoteGrader
    gate: asyncio.Semaphore
    breaker: _Breaker = field(default_factory=_Breaker)

    async def post(self, client: httpx.AsyncClient, body: str, read: Callable[[object], T]) -> T:
        """Send JSON text, and return what `read` makes of the JSON value that comes back.

        Raises:
            CallFailedError: there is none, `read` raises this error, or the service is left alone for now.
        """
        try:
            token = self.grader.token()
        except ConfigError as error:
            raise CallFailedError(str(error)) from None
        async with self.gate:
            self.breaker.admit(self.grader)
            try:
                reply = read(await self._repeated(client, body, token))
            except CallFailedError:
                self.breaker.record(self.grader, succeeded=False)
                raise
            self.breaker.record(self.grader, succeeded=True)
            return reply

    def clean(self, text: str, length: int = 500) -> str:
        """What a service says, fit to be shown: valid, short, and without the token, should it send that back."""
        return self.grader.hide_token(text)[:length].encode("utf-8", "replace").decode()

    async def _repeated(self, client: httpx.AsyncClient, body: str, token: str | None) -> object:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(_PassingError),
            stop=lambda state: state.attempt_number > self.grader.retries or _is_busy_for_long(state),
            wait=_wait,
            reraise=True,
        )
        return await attempts(self._once, client, body, headers)

    async def _once(self, client: httpx.AsyncClient, body: str, headers: Mapping[str, str]) -> object:
        url, place, seconds = self.grader.url, self.grader.place, self.grader.timeout_seconds
        try:
            # The client's own timeouts begin anew with every byte.
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", url, content=body.encode(), headers=headers, timeout=None) as response,
            ):
                content = await _read(response, place)
        except TimeoutError:
            raise _PassingError(f"{place} did not answer within {seconds:g} s") from None
        except httpx.TransportError as error:
            raise _PassingError(f"cannot reach {place} ({type(error).__name__})") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CallFailedError(f"{place} sent a broken answer ({type(error).__name__})") from None
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise CallFailedError(f"{place} answered something that is not JSON") from None


_callers: "WeakKeyDictionary[httpx.AsyncClient, dict[str, Caller]]" = WeakKeyDictionary()


def caller(grader: RemoteGrader, client: httpx.AsyncClient) -> Caller:
    """The one caller for this grader and client: what it knows of the service lasts as long as the client."""
    known = _callers.setdefault(client, {})
    key = grader.model_dump_json()
    if key not in known:
        known[key] = Caller(grader, asyncio.Semaphore(grader.max_concurrency))
    return known[key]


async def _read(response: httpx.Response, place: str) -> bytes:
    if response.status_code in _WORTH_REPEATING:
        raise _PassingError(
            f"{place} answered {response.status_code}", _retry_after(response.headers.get("Retry-After"))
        )
    if not response.is_success:
        raise CallFailedError(f"{place} answered {response.status_code}")
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > _LARGEST_REPLY_BYTES:
            raise CallFailedError(f"{place} answered more than {_LARGEST_REPLY_BYTES >> 20} MiB")
    return bytes(content)


def _retry_after(header: str | None) -> float | None:
    """Seconds, from a number of them or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(header)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


def _wanted_wait(state: RetryCallState) -> float | None:
    error = state.outcome.exception() if state.outcome else None
    return error.wait_seconds if isinstance(error, _PassingError) else None


def _wait(state: RetryCallState) -> float:
    wanted = _wanted_wait(state)
    return _backoff(state) if wanted is None else wanted


def _is_busy_for_long(state: RetryCallState) -> bool:
    return (_wanted_wait(state) or 0.0) > _LONGEST_WAIT_SECONDS
