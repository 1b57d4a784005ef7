"""A server that answers each request with raw bytes of the test's choice, at any pace."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Answer = Callable[[socket.socket], None]
"""Writes the answer to the request's connection."""


class HostileServer:
    """A server on a local port. `answers` maps paths to answers; `asked` collects the heads of the requests."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()

    def serve(self) -> None:
        """Answer until the listener is closed, with one thread per connection."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(connection)
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Close the listener and all connections."""
        # Closing alone would not wake the thread blocked in accept().
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _converse(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError), connection:
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            self.asked.append(head)
            path = head.split(b" ", 2)[1].decode()
            if answer := self.answers.get(path):
                answer(connection)


@contextmanager
def hostile_server(answers: dict[str, Answer]) -> Iterator[HostileServer]:
    """Run a server with those answers in a thread while the block runs."""
    server = HostileServer(answers)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def saying(data: bytes) -> Answer:
    """Send these bytes, then close."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(data)

    return answer


def replying(body: bytes, status: str = "200 OK", headers: bytes = b"") -> Answer:
    """Send a complete response."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n".encode()
    return saying(head + headers + b"\r\n" + body)


def forever(begin: bytes, again: bytes, pause: threading.Event | None = None, seconds: float = 0.0) -> Answer:
    """Send `begin`, then `again` over and over until the client disconnects or `pause` is set."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(again)
            if pause is not None and pause.wait(seconds):
                return

    return answer


def silence(ends: threading.Event) -> Answer:
    """Send nothing until the event is set."""
    return lambda connection: ends.wait(60) and None
