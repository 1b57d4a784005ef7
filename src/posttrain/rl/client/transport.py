"""HTTP requests that are retried while the server is unavailable."""

import gzip
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from pydantic import ValidationError
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay

from posttrain.base.http import LoopThread, PassingError, TooLargeError, exchange, passing_error, pause, retry_after
from posttrain.base.secrets import hidden, without_secrets
from posttrain.base.text import clipped
from posttrain.dataserver.schemas import Problem
from posttrain.errors import ConfigError, ServerError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
# The server closes connections that are idle for 5 s; one that closes just as it is used costs a retry.
_IDLE_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 30.0
# This many characters of a token do not occur in a text by chance.
_PART = 8
# Smaller bodies are sent fast enough uncompressed on any network.
_WORTH_PACKING_BYTES = 2**16
_BUSY_OR_BROKEN = (408, 425, 429)
_SHOWN_FIELDS = 20
_LONGEST_QUOTE = 1000


MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Far more than any page of prompts or rewards; an answer beyond it may be endless."""


class OutageError(ServerError):
    """No valid answer came, although the request was repeated."""


class WrongServerError(ServerError):
    """The address or the token is wrong; at the start of a run that is an error in its config."""


class Transport:
    """Sends requests to one server; they must be idempotent, since they are repeated. Any thread may send, and several
    at once."""

    def __init__(
        self, url: str, token: str | None, retry_seconds: float, check: Callable[[], None] | None = None
    ) -> None:
        """Open no connection until one is needed.

        Args:
            retry_seconds: how long a request is repeated.
            check: called before a request is repeated, in its thread; an exception ends the repetition.

        Raises:
            ConfigError: the URL or the token cannot be used.
        """
        self.url = _checked_url(url)
        self.place = f"the dataserver at {self.url}"
        self.retries = 0
        """Number of repetitions so far, over all requests."""
        self._counting = threading.Lock()
        self._secrets = [token.strip()] if token else []
        self._retry_seconds = retry_seconds
        self._check = check
        # An event loop is used because its timeouts cover a whole exchange; one for all threads shares the connections.
        self._loop = LoopThread("dataserver client")
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers=_authorization(token),
            trust_env=False,  # a proxy from the environment is not meant for a server on this machine
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(keepalive_expiry=_IDLE_SECONDS),
        )

    def close(self) -> None:
        """Close the connections; requests in progress in other threads raise ServerError."""
        self._loop.close(self._client.aclose())

    def send(
        self,
        path: str,
        body: bytes | None,
        seconds: float,
        read: Callable[[bytes], T],
        patience: float | None = None,
    ) -> T:
        """Send a request, a POST if it has a body, and return what `read` makes of the answer.

        Args:
            seconds: how long one try may take.
            read: raises PassingError if the answer is invalid.
            patience: how many seconds the request is repeated, instead of `retry_seconds`.

        Raises:
            OutageError: no valid answer came for too long.
            WrongServerError: the token is wrong, or there is no dataserver at that address.
            ServerError: the server refuses the request.
        """
        budget = self._retry_seconds if patience is None else patience
        outage = _Outage(self.place, budget)

        def before_sleep(state: RetryCallState) -> None:
            if self._check is not None:
                self._check()
            with self._counting:
                self.retries += 1
            outage.goes_on(passing_error(state))

        def wait(state: RetryCallState) -> float:
            """Shorten the pause so that the last try comes when the budget ends."""
            return max(0.0, min(pause(state), state.start_time + budget - time.monotonic()))

        attempts = Retrying(
            retry=retry_if_exception_type(PassingError),
            stop=stop_after_delay(budget),
            wait=wait,
            before_sleep=before_sleep,
            reraise=True,
        )
        content, headers = _packed(body)
        try:
            answer = attempts(lambda: read(self._once(path, content, headers, seconds)))
        except PassingError as error:
            raise outage.failure(error) from None
        outage.is_over()
        return answer

    def _once(self, path: str, content: bytes | None, headers: dict[str, str], seconds: float) -> bytes:
        method = "GET" if content is None else "POST"
        asked = exchange(
            self._client, method, path, content=content, headers=headers, seconds=seconds, max_bytes=MAX_ANSWER_BYTES
        )
        try:
            response, answer = self._loop.run(asked)
        except TimeoutError:
            raise PassingError(f"{self.place} did not answer {path} within {seconds:g} s") from None
        except TooLargeError:
            raise WrongServerError(
                f"{self.place} answered {path} with more than {MAX_ANSWER_BYTES // 2**20} MiB; is this the address of "
                "a toolkit-rl-dataserver?"
            ) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise PassingError(f"{self.place} cannot be reached ({self._reason(error)})") from None
        except httpx.RequestError as error:
            raise PassingError(f"{self.place} broke off its answer to {path} ({self._reason(error)})") from None
        if response.status_code != 200:
            raise self._refusal(path, response, answer)
        return answer

    def _refusal(self, path: str, response: httpx.Response, content: bytes) -> PassingError | ServerError:
        """The error for an answer other than 200; `content` is its body."""
        text = hidden(content.decode("utf-8", "replace"), self._secrets)
        try:
            problem = Problem.model_validate_json(text)
        except ValidationError:  # from a proxy, or from another server
            problem = Problem(code="", message=text)
        reason = quoted(problem.message) or quoted(hidden(response.reason_phrase, self._secrets))
        told = f"{self.place} answered {path} with {response.status_code}: {reason}"
        status = response.status_code
        if status < 300 or status >= 500 or status in _BUSY_OR_BROKEN:
            return PassingError(told, retry_after(response))
        if status == 401:
            return WrongServerError(
                f"{self.place} {'rejects the token' if self._secrets else 'requires a token'}: put the token that the "
                "server was started with (its listen.token_env) into the environment variable named by "
                "dataserver.token_env in this run's config"
            )
        if status in (404, 405) or response.is_redirect:
            location = quoted(without_secrets(response.headers.get("Location", ""), self._secrets))
            where = f", and points to {location}" if location else ""
            return WrongServerError(f"{told}{where}; is this the address of a toolkit-rl-dataserver?")
        if problem.code == "config_mismatch":
            return config_changed(self.place, quoted(problem.message))
        fields = ", ".join(map(quoted, problem.fields[:_SHOWN_FIELDS]))
        return ServerError(told + (f" (fields: {fields})" if fields else ""))

    def _reason(self, error: httpx.RequestError) -> str:
        """What went wrong, without any part of the token, in case the server sent it back."""
        cause: BaseException = error
        # anyio and asyncio wrap the system's message in their own.
        while isinstance(error, httpx.NetworkError) and (inner := cause.__cause__ or cause.__context__):
            cause = inner.exceptions[-1] if isinstance(inner, BaseExceptionGroup) else inner
        text = str(cause)
        if isinstance(cause, OSError) and cause.errno and "Connect call failed" in text:
            text = f"[Errno {cause.errno}] {os.strerror(cause.errno)}"
        parts = (secret[start : start + _PART] for secret in self._secrets for start in range(len(secret) - _PART + 1))
        return type(error).__name__ if not text or any(part in text for part in parts) else text


class _Outage:
    """Logs an outage of the server: when it begins, now and then while it lasts, and when it is over."""

    def __init__(self, place: str, budget: float) -> None:
        self._place = place
        self._budget = budget
        self._begin = self._told = time.monotonic()
        self._tries = 1

    def goes_on(self, error: PassingError) -> None:
        """Record that a request is about to be repeated."""
        now = time.monotonic()
        if self._tries == 1:
            logger.warning("%s; retrying for up to %g s", error, self._budget)
            self._told = now
        elif now - self._told > _SECONDS_BETWEEN_LINES:
            logger.warning("%s; this has lasted for %.0f s", error, now - self._begin)
            self._told = now
        self._tries += 1

    def is_over(self) -> None:
        """Record that a valid answer has come."""
        if self._tries > 1:
            seconds = time.monotonic() - self._begin
            logger.warning("%s answers again, after %.1f s and %d tries", self._place, seconds, self._tries)

    def failure(self, last: PassingError) -> OutageError:
        """The error to raise when the budget is spent."""
        seconds = time.monotonic() - self._begin
        tries = "1 try" if self._tries == 1 else f"{self._tries} tries"
        return OutageError(
            f"no valid answer after {seconds:.0f} s and {tries}; last error: {last}. Check whether the server is "
            "running and what its log says; --resume continues from the last checkpoint"
        )


def quoted(text: str) -> str:
    """A server's text as quoted in a message: short, on one line, and without terminal control characters."""
    return clipped(" ".join(text[:_LONGEST_QUOTE].split()))


def config_changed(place: str, details: str) -> ServerError:
    """The error for a server that now serves other prompts and rewards than the run began with."""
    return ServerError(
        f"{place} no longer serves what this run started with: {details}. Start it with the config, data and graders "
        "of this run and resume, or start a new run"
    )


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url.strip())
        is_address = parsed.scheme in ("http", "https") and parsed.host and 0 < (parsed.port or 80) < 2**16
    except (httpx.InvalidURL, UnicodeError):
        raise _no_address(url) from None
    if parsed.userinfo:
        raise ConfigError("the dataserver URL contains a user name or password; pass the token through token_env")
    if not is_address:
        raise _no_address(url)
    return str(parsed).rstrip("/")


def _no_address(url: str) -> ConfigError:
    return ConfigError(f"{url!r} is not the address of a server; write http://host:port")


def _authorization(token: str | None) -> list[tuple[bytes, bytes]]:
    if token is None:
        return []
    token = token.strip()
    if not token or not token.isprintable():
        raise ConfigError("the dataserver's token is empty or contains line breaks; check the environment variable")
    return [(b"Authorization", f"Bearer {token}".encode())]


def _packed(body: bytes | None) -> tuple[bytes | None, dict[str, str]]:
    """The body as sent, compressed if large, and its headers."""
    headers = {} if body is None else {"Content-Type": "application/json"}
    if body is None or len(body) < _WORTH_PACKING_BYTES:
        return body, headers
    return gzip.compress(body, compresslevel=1), {**headers, "Content-Encoding": "gzip"}
