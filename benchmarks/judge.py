"""A grader service that only waits, as a remote judge does: the dataserver's grader `http` calls it."""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

Call = tuple[float, float]
"""When a call began and ended, as readings of `time.perf_counter`."""


class Judge(NamedTuple):
    """A judge that is running.

    Attributes:
        url: its address.
        calls: those that it has answered, in the order of their answers.
    """

    url: str
    calls: list[Call]


@contextmanager
def judging(seconds: float) -> Iterator[Judge]:
    """A judge that takes `seconds` for a call, however many calls there are at once."""
    calls: list[Call] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            began = time.perf_counter()
            items = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
            time.sleep(seconds)
            results = [{"item_id": item["item_id"], "score": score(item["completion"])} for item in items]
            body = json.dumps({"results": results}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            calls.append((began, time.perf_counter()))

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield Judge(f"http://127.0.0.1:{server.server_port}", calls)
        finally:
            server.shutdown()


def score(text: str) -> float:
    """The share of its characters that come once, which differs between most completions of a prompt."""
    return sum(text.count(letter) == 1 for letter in text) / len(text) if text else 0.0


def busy_seconds(calls: Sequence[Call], begin: float, end: float) -> float:
    """Seconds between two times in which at least one call was under way."""
    busy, free_from = 0.0, begin
    for began, ended in sorted(calls):
        busy += max(0.0, min(ended, end) - max(began, free_from))
        free_from = max(free_from, ended)
    return busy
