"""HTTP connections with limits on their headers, their number and the time to send a request.

All limits apply before the client is authenticated.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# For the first line and all headers of a request, as in most servers, and for anything else that is not content.
_MOST_HEAD_BYTES = 16 * 2**10


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which itself accepts heads of any size and waits for ever.

    Subclasses set what is declared here.
    """

    describe: ClassVar[Callable[[str, str], bytes]]
    """The JSON of a refusal's code and message."""
    section: ClassVar[str]
    """What comes before the names of the limits in messages."""
    most_connections: ClassVar[int]
    seconds_to_ask: ClassVar[float]
    """How long a request may take to arrive, from when its connection was made or its first byte came."""

    _has_begun = False
    _bytes_without_content = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the first request; refuse the connection if there are too many."""
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > self.most_connections:
            self._refuse(
                HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", f"too many connections ({self.section}connections)"
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data in pieces, so that a head is refused as soon as it is too long."""
        rest = memoryview(data)
        while rest and not self.transport.is_closing():
            room = _MOST_HEAD_BYTES - self._bytes_without_content
            piece, rest = rest[:room], rest[room:]
            self._bytes_without_content += len(piece)
            super().data_received(piece)  # type: ignore[arg-type]
            if self._bytes_without_content >= _MOST_HEAD_BYTES:
                message = f"the headers of a request may have at most {_MOST_HEAD_BYTES // 2**10} KiB"
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", message)

    def on_message_begin(self) -> None:
        """Start the deadline of a request."""
        super().on_message_begin()
        self._has_begun = True
        self._set_deadline()

    def on_headers_complete(self) -> None:
        """Reset the count of bytes without content."""
        self._bytes_without_content = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count of bytes without content; trailers may follow."""
        self._bytes_without_content = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Cancel the deadline, as the request has arrived."""
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
            # Send no answer where nothing was asked: it would be taken for the answer to the next request.
            self.transport.close()
            return
        message = f"the request did not arrive within {self.seconds_to_ask:g} s ({self.section}receive_seconds)"
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "too_slow", message)

    def _refuse(self, status: HTTPStatus, code: str, message: str) -> None:
        """Send the reason, unless an answer is on its way, and close the connection."""
        if self.transport.is_closing():
            return
        if self.cycle is None or self.cycle.response_complete:
            content = type(self).describe(code, message)
            lines = [
                f"HTTP/1.1 {status.value} {status.phrase}",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
                "Connection: close",
                *(["Retry-After: 2"] if status == HTTPStatus.SERVICE_UNAVAILABLE else []),
            ]
            self.transport.write("\r\n".join([*lines, "", ""]).encode() + content)
        self.transport.close()


def bounded_protocol(
    connections: int, receive_seconds: float, describe: Callable[[str, str], bytes], section: str
) -> type[asyncio.Protocol]:
    """The protocol class with these limits; uvicorn creates one instance per connection."""
    own: dict[str, Any] = {
        "most_connections": connections,
        "seconds_to_ask": receive_seconds,
        "describe": staticmethod(describe),
        "section": section,
    }
    return type("Protocol", (BoundedProtocol,), own)
