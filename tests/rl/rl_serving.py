"""A proxy that corrupts a real dataserver's answers in ways no real server would, and items to grade."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import httpx

from dataserver.serving import gold_of
from posttrain.dataserver.schemas import GradeItem, Sample


def items_for(samples: list[Sample], *tries: str) -> list[GradeItem]:
    """One completion per sample and try; the try "gold" is replaced by the right answer."""
    return [
        GradeItem(
            item_id=f"{sample.slot}-{number}",
            sample_id=sample.sample_id,
            completion=gold_of(sample) if said == "gold" else said,
            slot=sample.slot,
        )
        for sample in samples
        for number, said in enumerate(tries)
    ]


class Reply(NamedTuple):
    """An HTTP response on its way to the client."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    seconds_per_byte: float = 0.0


Fault = Callable[[Reply], Reply]


@dataclass
class SpoilingProxy:
    """Forwards requests to a server and corrupts its prompts and rewards: with each fault once, then with `always`."""

    url: str
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    describing: Fault | None = None
    """Corrupts the answers to /meta."""
    requests: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body of each request, as received."""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, timeout=60))

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The reply that the client gets."""
        self.requests.append((path, headers, body))
        kept = [
            (name.encode(), value.encode("latin-1"))
            for name, value in headers.items()
            if name.lower() not in ("host", "connection")
        ]
        response = self.client.request(method, self.url + path, headers=kept, content=body)
        reply = Reply(response.status_code, {"Content-Type": "application/json"}, response.content)
        if method == "GET":
            fault = self.describing if path == "/meta" else None
        else:
            fault = self.faults.pop(0) if self.faults else self.always
        return fault(reply) if fault else reply


@contextmanager
def spoiling(url: str) -> Iterator[tuple[str, SpoilingProxy]]:
    """Run a proxy in front of the server at `url`; yields the proxy's URL and the proxy."""
    proxy = SpoilingProxy(url)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            reply = proxy.answer(self.command, self.path, dict(self.headers), body)
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if not reply.seconds_per_byte:
                self.wfile.write(reply.content)
                return
            try:
                for byte in reply.content:
                    self.wfile.write(bytes([byte]))
                    time.sleep(reply.seconds_per_byte)
            except ConnectionError:
                pass  # the client gave up before the end

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_port}", proxy
        finally:
            listener.shutdown()
            thread.join()
            proxy.client.close()


def changed(change: Callable[[Any], Any]) -> Fault:
    """A fault from a function that changes an answer's JSON in place or returns a replacement."""

    def fault(reply: Reply) -> Reply:
        value = json.loads(reply.content)
        other = change(value)
        return reply._replace(content=json.dumps(value if other is None else other).encode())

    return fault


def failing(status: int, **headers: str) -> Fault:
    """A fault that answers with a status, headers and no body."""
    return lambda reply: Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, b"")
