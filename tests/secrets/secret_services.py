"""Services that require a secret, and services that echo the secret in various ways."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from canaries import SECRETS
from fastapi import FastAPI, Request, Response

from dataserver.graders.services import serving_app

ECHOES = ("body", "json", "deep", "header", "reason", "redirect", "detail", "score", "garbage")
"""How a hostile service echoes the header."""


def strict_app() -> FastAPI:
    """A judge at /judge and a grader at /grade that refuse requests without their key; scores depend on the text."""
    app = FastAPI()

    def welcome(request: Request, name: str) -> bool:
        return request.headers.get("authorization") == f"Bearer {SECRETS[name]}"

    @app.post("/judge")
    async def judge(request: Request) -> Response:
        if not welcome(request, "JUDGE_AUTH"):
            return Response("who are you?", 401)
        asked = (await request.json())["messages"][0]["content"]
        verdict = json.dumps({"reason": "I looked", "score": len(asked) % 2})
        return _json({"choices": [{"message": {"content": verdict}}]})

    @app.post("/grade")
    async def grade(request: Request) -> Response:
        if not welcome(request, "GRADER_TOKEN"):
            return Response("who are you?", 401)
        items = (await request.json())["items"]
        return _json({"results": [{"item_id": item["item_id"], "score": _score(item)} for item in items]})

    return app


def echoing_app() -> FastAPI:
    """An app that echoes the Authorization header at /<way>/<status>, in that way and with that status.

    `app.state.sent` collects the received headers.
    """
    app = FastAPI()
    app.state.sent = []

    @app.api_route("/{way}/{status}{rest:path}", methods=["GET", "HEAD", "POST"])
    async def echo(way: str, status: int, request: Request) -> Response:
        sent = request.headers.get("authorization", "nothing")
        app.state.sent.append(sent)
        match way:
            case "body":
                return Response(f"you sent {sent} and that is wrong", status)
            case "json":
                return _json({"code": "bad_request", "message": f"you sent {sent}", "fields": [sent]}, status)
            case "deep":
                return _json({"error": json.dumps({"headers": {"authorization": sent}})}, status)
            case "header":
                return Response("no", status, headers={"X-Sent": sent, "WWW-Authenticate": sent})
            case "redirect":
                return Response("", status, headers={"Location": f"http://user:{sent.split()[-1]}@nowhere/"})
            case "detail":
                content = json.dumps({"reason": f"you sent {sent}", "score": 1})
                result = {"item_id": "0", "score": 1, "detail": json.dumps({"sent": sent})}
                return _json({"choices": [{"message": {"content": content}}], "results": [result]}, status)
            case "score":
                result = {"item_id": "0", "score": sent}
                return _json({"choices": [{"message": {"content": sent}}], "results": [result]}, status)
        return Response(sent.encode() * 3, status, media_type="application/json")

    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value), status, media_type="application/json")


def _score(item: dict[str, Any]) -> float:
    return (len(item["completion"]) % 10) / 10


@contextmanager
def echoing_line() -> Iterator[str]:
    """The URL of a server that echoes the Authorization header as a malformed header line, which is not valid HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def serve() -> None:
            while not ended.is_set():
                connection, _ = listener.accept()
                with connection:
                    lines = connection.recv(2**16).split(b"\r\n")
                    sent = next((line for line in lines if line.lower().startswith(b"authorization")), b"")
                    connection.sendall(b"HTTP/1.1 200 OK\r\n" + sent.replace(b":", b" ") + b"\r\n\r\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            socket.create_connection(listener.getsockname()).close()
            thread.join()


@contextmanager
def strict_services() -> Iterator[str]:
    """The URL of a running `strict_app`."""
    with serving_app(strict_app()) as url:
        yield url


@contextmanager
def echoing_services() -> Iterator[str]:
    """The URL of a running `echoing_app`."""
    with serving_app(echoing_app()) as url:
        yield url
