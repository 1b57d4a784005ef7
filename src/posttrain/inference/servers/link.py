"""HTTP requests to one generation server, as JSON, with its errors in words."""

import json
import os
import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from posttrain.base.http import PassingError, TooLargeError, exchange, retry_after
from posttrain.base.secrets import hidden
from posttrain.base.text import clipped
from posttrain.errors import ConfigError, ServerError, ToolkitError

_CONNECT_SECONDS = 5.0
# Servers close connections that are idle for 5 s; one that closes just as it is used costs a retry.
_IDLE_SECONDS = 2.0
_MAX_ANSWER_BYTES = 256 * 1024 * 1024
_LONGEST_QUOTE = 600
_BUSY = (408, 425, 429, 503)


class BusyError(PassingError):
    """The server works, but takes no more requests now."""


class RefusedError(ServerError):
    """The server refuses a request; repeating it would not help. `status` is HTTP's."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Link:
    """Requests to one server; only the coroutines of one event loop may use it."""

    def __init__(self, title: str, url: str, key: str | None, key_name: str = "servers.token_env") -> None:
        """Open no connection until one is needed.

        Args:
            title: the server's name in messages, such as "vLLM".
            key: sent as a bearer token, if the server requires one.
            key_name: where a config names the variable that holds the key.
        """
        self._key_name = key_name
        self.url = url
        self.place = f"the {title} server at {url}"
        self._secrets = [key] if key else []
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.AsyncClient(
            base_url=url,
            trust_env=False,  # a proxy from the environment is not meant for these servers
            verify=ssl.create_default_context(),  # the system's authorities, or those of SSL_CERT_FILE
            timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_IDLE_SECONDS),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str, seconds: float) -> Any:
        """The JSON that the server answers to a GET; `seconds` is the limit for the whole exchange.

        Raises:
            ConfigError: the key is wrong or missing.
            PassingError: no valid answer came, but a repetition may bring one.
            RefusedError: the server refuses the request.
        """
        return await self._ask("GET", path, None, seconds)

    async def post(self, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        """The JSON that the server answers to a POST; None if it answers 200 with something else. Raises as `get`."""
        return await self._ask("POST", path, body, seconds)

    async def answers_without_key(self, path: str, seconds: float) -> bool:
        """Whether the server answers a GET of `path` with 200 to somebody who does not know the key."""
        response, _ = await self._exchange("GET", path, None, {}, seconds)
        return response.status_code == 200

    async def is_alive(self, path: str, seconds: float) -> bool:
        """Whether the server answers a GET of `path` with 200."""
        try:
            response, _ = await self._exchange("GET", path, None, self._headers, seconds)
        except PassingError:
            return False
        return response.status_code == 200

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> Any:
        content = None if body is None else json.dumps(body).encode()
        response, answer = await self._exchange(method, path, content, self._headers, seconds)
        if response.status_code != 200:
            raise self._refusal(path, response, answer)
        try:
            return json.loads(answer)
        except ValueError:  # not UTF-8 either
            if method == "POST":  # vLLM answers some with a sentence
                return None
            raise PassingError(f"{self.place} answered {path} with something else than JSON") from None

    async def _exchange(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> tuple[httpx.Response, bytes]:
        if content is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            return await exchange(
                self._client,
                method,
                path,
                content=content,
                headers=headers,
                seconds=seconds,
                max_bytes=_MAX_ANSWER_BYTES,
            )
        except TimeoutError:
            raise PassingError(f"{self.place} did not answer {path} within {seconds:g} s") from None
        except TooLargeError:
            raise RefusedError(f"{self.place} answered {path} with more than 256 MiB", 200) from None
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise PassingError(f"{self.place} cannot be reached ({_reason(error)})") from None
        except httpx.RequestError as error:
            raise PassingError(f"{self.place} broke off its answer to {path} ({_reason(error)})") from None
        except httpx.InvalidURL:
            raise ConfigError(f"{self.url} is not the address of a server") from None

    def _refusal(self, path: str, response: httpx.Response, answer: bytes) -> PassingError | ToolkitError:
        status = response.status_code
        told = f"{self.place} answered {path} with {status}: {self._quoted(answer)}"
        if status in _BUSY:
            return BusyError(told, retry_after(response))
        if status >= 500:
            return PassingError(told)
        if status == 401:
            wrong = "rejects the key" if self._secrets else "requires a key"
            told = f"{self.place} {wrong}: put it into the environment variable that {self._key_name} names"
            return ConfigError(told)
        return RefusedError(told, status)

    def _quoted(self, answer: bytes) -> str:
        """The message in an answer: on one line, short, and without the key."""
        text = hidden(answer[:_LONGEST_QUOTE].decode("utf-8", "replace"), self._secrets)
        return clipped(" ".join(text.split()))


def _reason(error: httpx.RequestError) -> str:
    cause: BaseException = error
    while inner := cause.__cause__ or cause.__context__:
        cause = inner.exceptions[-1] if isinstance(inner, BaseExceptionGroup) else inner
    if isinstance(cause, ssl.SSLError):
        return getattr(cause, "verify_message", "") or cause.reason or "TLS"
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return type(error).__name__
