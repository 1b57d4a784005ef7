"""The trainer's connections, on which an exchange has so many seconds in all, however slowly its bytes go and come.

A timeout of a socket begins anew with every byte. A server that sends one now and then, headers included, or that
takes a request byte by byte, would hold a trainer for ever.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Any

import httpcore
import httpx

_BYTES_AT_ONCE = 1 << 16


class Network(httpx.BaseTransport):
    """Carries the requests of an `httpx.Client`; its read timeout is that of a whole exchange."""

    def __init__(self, idle_seconds: float) -> None:
        """`idle_seconds`: how long a connection is kept for another request."""
        self._pool = httpcore.ConnectionPool(
            max_connections=None, keepalive_expiry=idle_seconds, network_backend=_Backend()
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; its answer is still to be read.

        Raises:
            httpx.RequestError: there is no answer, or none in time.
        """
        assert isinstance(request.stream, httpx.SyncByteStream)
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx_tells_it():
            answer = self._pool.handle_request(asked)
        return httpx.Response(
            answer.status, headers=answer.headers, stream=_Body(answer), extensions=dict(answer.extensions)
        )

    def close(self) -> None:
        """End the connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, answer: httpcore.Response) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx_tells_it():
            yield from self._answer.iter_stream()

    def close(self) -> None:
        self._answer.close()


class _Backend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Connection(super().connect_tcp(host, port, timeout, local_address, socket_options))


class _Connection(httpcore.NetworkStream):
    """A connection whose timeout holds from the first byte of a request to the last one of its answer."""

    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner
        self._end = float("inf")
        self._is_answered = True

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._is_answered = True
        return self._inner.read(max_bytes, self._left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._is_answered:
            self._end = float("inf") if timeout is None else time.monotonic() + timeout
            self._is_answered = False
        for start in range(0, len(buffer), _BYTES_AT_ONCE):
            self._inner.write(buffer[start : start + _BYTES_AT_ONCE], self._left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Connection(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)

    def _left(self, too_late: type[httpcore.TimeoutException]) -> float | None:
        """Seconds that the exchange still has."""
        if self._end == float("inf"):
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise too_late("the exchange takes too long")
        return left


@contextmanager
def _as_httpx_tells_it() -> Iterator[None]:
    """Turn the errors of httpcore into those of httpx, which are called the same."""
    try:
        yield
    except httpcore.ConnectTimeout as error:
        raise httpx.ConnectTimeout(str(error)) from error
    except httpcore.ConnectError as error:
        raise httpx.ConnectError(str(error)) from error
    except httpcore.TimeoutException as error:
        raise httpx.ReadTimeout(str(error)) from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
        raise httpx.RequestError(str(error)) from error
