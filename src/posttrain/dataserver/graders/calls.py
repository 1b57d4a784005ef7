"""Calls to an external grading service: limited, retried, and suspended after repeated failures."""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

import httpx
from tenacity import AsyncRetrying, retry_if_exception_type

from posttrain.base.http import PassingError, TooLargeError, exchange, passing_error, pause, retry_after
from posttrain.dataserver.graders.remote import CallFailedError, RemoteGrader
from posttrain.errors import ConfigError

_WORTH_REPEATING = {429, 502, 503, 504}
_LONGEST_WAIT_SECONDS = 30.0
_LARGEST_REPLY_BYTES = 16 * 2**20

T = TypeVar("T")


@dataclass
class _Breaker:
    """Circuit breaker: stop calling a service after several failures in a row."""

    failures: int = 0
    resting_until: float = 0.0
    """Time on the monotonic clock before which there is no call."""

    def admit(self, grader: RemoteGrader) -> None:
        if self.failures < grader.breaker_failures:
            return
        now = time.monotonic()
        if now < self.resting_until:
            raise CallFailedError(f"{grader.place} is not being called, after {self.failures} failed calls in a row")
        # This call is the only one until it returns, or until `breaker_seconds` have passed again.
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
        """Send JSON text and return what `read` makes of the JSON value in the reply.

        Raises:
            CallFailedError: the token is missing or invalid, no JSON value comes back, `read` raises this error, or the
                breaker is open.
        """
        try:
            token = self.grader.token()
        except ConfigError as error:
            raise CallFailedError(str(error)) from None
        async with self.gate:
            self.breaker.admit(self.grader)
            try:
                reply = read(await self._repeated(client, body, token))
            except (CallFailedError, PassingError) as error:
                self.breaker.record(self.grader, succeeded=False)
                raise CallFailedError(str(error)) from None
            self.breaker.record(self.grader, succeeded=True)
            return reply

    def clean(self, text: str) -> str:
        """A service's text made fit to show: valid Unicode, at most 500 characters, and without the token."""
        return self.grader.hide_token(text)[:500].encode("utf-8", "replace").decode()

    async def _repeated(self, client: httpx.AsyncClient, body: str, token: str | None) -> object:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(PassingError),
            stop=lambda state: (
                state.attempt_number > self.grader.retries or passing_error(state).wait_seconds > _LONGEST_WAIT_SECONDS
            ),
            wait=pause,
            reraise=True,
        )
        return await attempts(self._once, client, body.encode(), headers)

    async def _once(self, client: httpx.AsyncClient, body: bytes, headers: Mapping[str, str]) -> object:
        place, seconds = self.grader.place, self.grader.timeout_seconds
        try:
            response, content = await exchange(
                client,
                "POST",
                self.grader.url,
                content=body,
                headers=headers,
                seconds=seconds,
                max_bytes=_LARGEST_REPLY_BYTES,
            )
        except TimeoutError:
            raise PassingError(f"{place} did not answer within {seconds:g} s") from None
        except TooLargeError:
            raise CallFailedError(f"{place} sent more than {_LARGEST_REPLY_BYTES >> 20} MiB") from None
        except httpx.TransportError as error:
            raise PassingError(f"cannot reach {place} ({type(error).__name__})") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CallFailedError(f"{place} sent an invalid response ({type(error).__name__})") from None
        if response.status_code in _WORTH_REPEATING:
            raise PassingError(f"{place} answered {response.status_code}", retry_after(response))
        if not response.is_success:
            raise CallFailedError(f"{place} answered {response.status_code}")
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise CallFailedError(f"{place} sent a response that is not JSON") from None


_callers: "WeakKeyDictionary[httpx.AsyncClient, dict[str, Caller]]" = WeakKeyDictionary()


def caller(grader: RemoteGrader, client: httpx.AsyncClient) -> Caller:
    """The one caller for this grader and client; its state lasts as long as the client."""
    known = _callers.setdefault(client, {})
    key = grader.model_dump_json()
    if key not in known:
        known[key] = Caller(grader, asyncio.Semaphore(grader.max_concurrency))
    return known[key]
