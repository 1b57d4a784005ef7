"""A server on loopback that answers chat completions as OpenAI's API does, and badly where a test wants that."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[Mapping[str, Any]], str]


@dataclass
class Reply:
    """A reply that is no answer.

    Attributes:
        cut: send only half of the body, and close the connection.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass
class ChatServer:
    """What the server does, and what it was asked.

    Attributes:
        bad: replies to the next requests, one each; later ones are answered.
        always: the reply to every request.
        key: the bearer token that it requires.
        tells_usage: whether it tells how long answers are.
    """

    answer: Answer
    bad: list[Reply] = field(default_factory=list)
    always: Reply | None = None
    key: str | None = None
    tells_usage: bool = True
    requests: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, path: str, body: Mapping[str, Any], authorization: str | None) -> Reply:
        """The reply to a request."""
        with self._lock:
            self.requests.append(dict(body))
            if path != "/v1/chat/completions":
                return Reply(404)
            if self.key is not None and authorization != f"Bearer {self.key}":
                return Reply(401, b'{"error": {"message": "Incorrect API key provided"}}')
            if self.always is not None or self.bad:
                return self.always or self.bad.pop(0)
        text = self.answer(body)
        completion: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        }
        if self.tells_usage:
            completion["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        return Reply(body=json.dumps(completion).encode())


@contextmanager
def chat_server(answer: Answer, **options: Any) -> Iterator[ChatServer]:
    """Run such a server while the block lasts; `answer` makes the text of an answer from a request."""
    server = ChatServer(answer, **options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = server.reply(self.path, body, self.headers.get("Authorization"))
            with suppress(OSError):  # the client is gone
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body[: len(reply.body) // 2] if reply.cut else reply.body)
                self.close_connection = reply.cut

        def handle(self) -> None:
            with suppress(OSError, json.JSONDecodeError):  # the client is gone, perhaps amid its request
                super().handle()

        def finish(self) -> None:
            with suppress(OSError):
                super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    threading.Thread(target=listening.serve_forever, args=[0.01], daemon=True).start()
    server.url = f"http://127.0.0.1:{listening.server_port}/v1"
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
