"""A proxy that injects network faults."""

import asyncio
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

FAULTS = ("pass", "late", "refused", "lost", "failed", "broken off", "cut", "twice")


class ChaosProxy:
    """Forwards requests to a local server, most of them with a random fault."""

    def __init__(self, port: int, seed: int, late_seconds: float) -> None:
        self._port = port
        self._choice = random.Random(seed)
        self._late_seconds = late_seconds
        self.done = Counter[str]()
        """Number of times each fault occurred."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        try:
            request = await _message(reader)
            fault = self._choice.choice(FAULTS)
            self.done[fault] += 1
            writer.write(await self._answer(request, fault))
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: bytes, fault: str) -> bytes:
        if fault == "refused":
            return b""
        if fault == "failed":
            return b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
        if fault == "twice":
            _, answer = await asyncio.gather(self._forward(request), self._forward(request))
            return answer
        answer = await self._forward(request)
        if fault == "late":
            await asyncio.sleep(self._late_seconds)
        if fault == "lost":
            return b""
        if fault == "broken off":
            return answer[: len(answer) * 2 // 3]
        if fault == "cut":
            headers, _, body = answer.partition(b"\r\n\r\n")
            half = body[: len(body) // 2]
            return re.sub(rb"(?i)(content-length): \d+", b"\\1: %d" % len(half), headers) + b"\r\n\r\n" + half
        return answer

    async def _forward(self, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read a request, changed so that the server closes the connection after its answer."""
    headers = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", headers)
    body = await reader.readexactly(int(length[1]) if length else 0)
    return re.sub(rb"(?i)connection: keep-alive", b"Connection: close", headers) + body


@contextmanager
def chaos_before(port: int, seed: int, late_seconds: float) -> Iterator[tuple[str, ChaosProxy]]:
    """Run a proxy in front of the server on a port; yields its URL and the proxy."""
    proxy = ChaosProxy(port, seed, late_seconds)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(proxy.handle, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", proxy
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        listener.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
