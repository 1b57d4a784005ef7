"""HTTP connections with bounded headers, deadlines and a maximum number.

All of it holds before anybody knows who is asking.
"""

import asyncio
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from posttrain.dataserver.schemas import Problem

# Of the first line and all headers of a request, as in most servers, and of whatever else is no content.
_MOST_HEAD_BYTES = 16 * 2**10


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which takes heads of any size and waits for ever. To be derived from, for the two limits."""

    most_connections: ClassVar[int]
    seconds_to_ask: ClassVar[float]
    """Within this time a request has arrived, from the moment that its connection was made or its first byte came."""

    _has_begun = False
    _bytes_without_content = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > self.most_connections:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", "too many connections (limits.connections)")

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read on, a piece at a time, so that a head is noticed as soon as it is too long."""
        rest = memoryview(data)
        while rest and not self.transport.is_closing():
            room = _MOST_HEAD_BYTES - self._bytes_without_content
            piece, rest = rest[:room], rest[room:]
            self._bytes_without_content += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]
            if self._bytes_without_content >= _MOST_HEAD_BYTES:
                message = f"the headers of a request have {_MOST_HEAD_BYTES // 2**10} KiB at most"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", message)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._has_begun = True
        self._set_deadline()

    def on_headers_complete(self) -> None:
        """Its head is over."""
        self._bytes_without_content = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its content; trailers may follow it."""
        self._bytes_without_content = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is there."""
        self._has_begun = False
        self._bytes_without_content = 0
        self._unset_deadline()
        super().on_message_complete()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.seconds_to_ask, self._end)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _end(self) -> None:
        if not self._has_begun:
            # To one who asks nothing nothing is answered: it would be taken for the answer to what comes next.
            self.transport.close()
            return
        message = f"the request was not there within {self.seconds_to_ask:g} s (limits.receive_seconds)"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "too_slow", message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Say why, unless an answer is on its way, and end the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            content = Problem(code=code, message=message).model_dump_json().encode()
            lines = [
                f"HTTP/1.1 {status.value} {status.phrase}",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
                "Connection: close",
                *(["Retry-After: 2"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
            ]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.transport.close()


def bounded_protocol(connections: int, receive_seconds: float) -> type[asyncio.Protocol]:
    """The protocol with these limits, for uvicorn to make one of per connection."""
    limits: dict[str, Any] = {"most_connections": connections, "seconds_to_ask": receive_seconds}
    return type("Protocol", (BoundedProtocol,), limits)
