"""HTTP requests that outlast a server's restart: repeated until the answer is good, or the patience is over."""

import gzip
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay
from tenacity.wait import wait_random_exponential

from posttrain.errors import ConfigError
from posttrain.rl.client.errors import OutageError, PassingError, WrongServerError, refusal
from posttrain.rl.client.network import Network

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONNECT_SECONDS = 5.0
# The server closes a connection that is idle for 5 s; one that is closed just while it is used costs a retry.
_IDLE_SECONDS = 2.0
_SECONDS_BETWEEN_LINES = 30.0
# Letters of a token that are not there by chance.
_PART = 8
# Smaller bodies cross any network in no time.
_WORTH_PACKING_BYTES = 2**16

# Exponential with full jitter: the ranks of a run do not come back all at once.
_backoff = wait_random_exponential(multiplier=0.1, max=5.0)


MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""Far more than any page of prompts or rewards; a server that sends more may never end."""


class Ask(NamedTuple):
    """One request: a POST if it has a body."""

    path: str
    body: bytes | None
    seconds: float
    """How long one try may take."""


class Transport:
    """Speaks to one server. Requests must be such that repeating them does no harm."""

    def __init__(
        self, url: str, token: str | None, retry_seconds: float, check: Callable[[], None] | None = None
    ) -> None:
        """Make the connections when they are needed.

        Args:
            retry_seconds: how long a request is repeated.
            check: called before a request is repeated; what it raises ends that.

        Raises:
            ConfigError: the URL or the token cannot be used.
        """
        self.url = _checked_url(url)
        self.place = f"the dataserver at {self.url}"
        self.retries = 0
        """How many requests had to be repeated, counting each time."""
        self._secrets = [token.strip()] if token else []
        self._retry_seconds = retry_seconds
        self._check = check
        self._client = httpx.Client(
            base_url=self.url,
            # Nothing packed, which could be small on its way and fill the memory here.
            headers=[*_authorization(token), (b"Accept-Encoding", b"identity")],
            trust_env=False,  # a proxy of the environment is not meant for a server on this machine
            transport=Network(_IDLE_SECONDS),
        )

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def send(self, ask: Ask, read: Callable[[bytes], T], patience: float | None = None) -> T:
        """What `read` makes of the answer.

        Args:
            read: raises PassingError where the answer is none.
            patience: how many seconds the request is repeated, instead of `retry_seconds`.

        Raises:
            OutageError: there is no good answer for too long.
            WrongServerError: the token is wrong, or there is no dataserver at that address.
            ServerError: the server refuses the request.
        """
        budget = self._retry_seconds if patience is None else patience
        outage = _Outage(self.place, budget)

        def before_sleep(state: RetryCallState) -> None:
            if self._check is not None:
                self._check()
            self.retries += 1
            outage.goes_on(_error_of(state))

        attempts = Retrying(
            retry=retry_if_exception_type(PassingError),
            stop=stop_after_delay(budget),
            wait=lambda state: _pause(state, budget),
            before_sleep=before_sleep,
            reraise=True,
        )
        content, headers = _packed(ask.body)
        try:
            answer = attempts(lambda: read(self._once(ask, content, headers)))
        except PassingError as error:
            raise outage.failure(error) from None
        outage.is_over()
        return answer

    def _once(self, ask: Ask, content: bytes | None, headers: dict[str, str]) -> bytes:
        method = "GET" if content is None else "POST"
        timeout = httpx.Timeout(ask.seconds, connect=min(_CONNECT_SECONDS, ask.seconds))
        too_late = f"{self.place} did not answer {ask.path} within {ask.seconds:g} s"
        try:
            with self._client.stream(method, ask.path, content=content, headers=headers, timeout=timeout) as response:
                answer = bytearray()
                for part in response.iter_raw():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        raise _endless(self.place, ask.path)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise PassingError(f"{self.place} cannot be reached ({self._harmless(error)})") from None
        except httpx.TimeoutException:
            raise PassingError(too_late) from None
        except httpx.RequestError as error:
            raise PassingError(f"{self.place} broke off its answer to {ask.path} ({self._harmless(error)})") from None
        if response.status_code != 200:
            raise refusal(self.place, ask.path, response, bytes(answer), self._secrets)
        return bytes(answer)

    def _harmless(self, error: Exception) -> str:
        """What went wrong, in words that hold no part of the token, should the server have sent it back."""
        text = str(error)
        parts = (secret[start : start + _PART] for secret in self._secrets for start in range(len(secret) - _PART + 1))
        return type(error).__name__ if any(part in text for part in parts) else text


class _Outage:
    """Tells of a server that gives no good answer: when that begins, now and then meanwhile, and when it is over."""

    def __init__(self, place: str, budget: float) -> None:
        self._place = place
        self._budget = budget
        self._begin = self._told = time.monotonic()
        self._tries = 1

    def goes_on(self, error: PassingError) -> None:
        """A request is about to be repeated."""
        now = time.monotonic()
        if self._tries == 1:
            logger.warning("%s; asking again for up to %g s", error, self._budget)
            self._told = now
        elif now - self._told > _SECONDS_BETWEEN_LINES:
            logger.warning("%s; so it has been for %.0f s", error, now - self._begin)
            self._told = now
        self._tries += 1

    def is_over(self) -> None:
        """There is a good answer."""
        if self._tries > 1:
            seconds = time.monotonic() - self._begin
            logger.warning("%s answers again, after %.1f s and %d tries", self._place, seconds, self._tries)

    def failure(self, last: PassingError) -> OutageError:
        """The error when the patience is over."""
        seconds = time.monotonic() - self._begin
        tries = "1 try" if self._tries == 1 else f"{self._tries} tries"
        return OutageError(
            f"no good answer after {seconds:.0f} s and {tries}; at last: {last}. See whether the server runs and what "
            "its log says; --resume goes on from the last checkpoint"
        )


def _endless(place: str, path: str) -> WrongServerError:
    return WrongServerError(
        f"{place} answered {path} with more than {MAX_ANSWER_BYTES // 2**20} MiB; is this the address of a "
        "toolkit-rl-dataserver?"
    )


def _checked_url(url: str) -> str:
    try:
        parsed = httpx.URL(url.strip())
        is_address = parsed.scheme in ("http", "https") and parsed.host and 0 < (parsed.port or 80) < 2**16
    except (httpx.InvalidURL, UnicodeError):
        raise _no_address(url) from None
    if parsed.userinfo:
        raise ConfigError("the address of the dataserver holds a name or password; give the token by token_env")
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
        raise ConfigError("the dataserver's token is empty or holds line breaks; check the environment variable")
    return [(b"Authorization", f"Bearer {token}".encode())]


def _packed(body: bytes | None) -> tuple[bytes | None, dict[str, str]]:
    """The body as it is sent, and the headers that say so."""
    headers = {} if body is None else {"Content-Type": "application/json"}
    if body is None or len(body) < _WORTH_PACKING_BYTES:
        return body, headers
    return gzip.compress(body, compresslevel=1), {**headers, "Content-Encoding": "gzip"}


def _pause(state: RetryCallState, budget: float) -> float:
    """Seconds until the next try; the last one comes when the budget ends."""
    left = budget - (time.monotonic() - state.start_time)
    return max(0.0, min(_error_of(state).wait_seconds + _backoff(state), left))


def _error_of(state: RetryCallState) -> PassingError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, PassingError)  # nothing else is repeated
    return error
