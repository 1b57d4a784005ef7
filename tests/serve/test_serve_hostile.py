"""Who is let in, how much may be asked, and what becomes of clients that go away."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_cases import LONG, NAME, Server, events, good, refused, serving, write_config

TOKEN = "canary-8d1f-token"


def raw(port: int, *lines: str, body: bytes = b"") -> bytes:
    """The answer to a request that is written as it is."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1].evil"])
def test_another_name_for_this_machine_is_refused(server: Server, host: str):
    answer = raw(server.port, "GET /v1/models HTTP/1.1", f"Host: {host}", "Connection: close")
    assert answer.startswith(b"HTTP/1.1 400")
    assert NAME.encode() not in answer


def test_two_hosts_are_refused(server: Server):
    lines = ("Host: localhost", "Host: evil.example", "Connection: close")
    answer = raw(server.port, "GET /v1/models HTTP/1.1", *lines)
    assert answer.startswith(b"HTTP/1.1 400") and b"host twice" in answer


def test_a_body_that_is_too_large_is_refused_while_it_comes(server: Server):
    error = refused(server.chat("x" * 600_000), 413)
    assert "larger than 0.5 MiB (--limit body_mb)" in error["message"]


def leave_soon(server: Server, **fields: Any) -> None:
    """Ask for an answer that would take very long, and go away: in the middle of a stream, or before an answer."""
    body = {"model": NAME, "prompt": "one", "max_tokens": LONG, **fields}
    if fields.get("stream"):
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            next(response.iter_lines())
        return
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/completions", json=body, timeout=1)


def test_an_answer_that_nobody_waits_for_ends(server: Server):
    """Whole, streamed, and a batch of both; each would keep the next request waiting for many minutes."""
    for fields in ({}, {"stream": True}, {"stream": True, "n": 3, "temperature": 1.0, "seed": 1}):
        leave_soon(server, **fields)
        good(server.chat())
    with ThreadPoolExecutor(2) as threads:
        for each in as_completed([threads.submit(leave_soon, server, stream=is_stream) for is_stream in (True, False)]):
            each.result()
    good(server.chat())


@pytest.mark.long
def test_a_request_that_takes_too_long_is_given_up(serve: Callable[..., Server]):
    server = serve("--limit", "seconds=1.5")
    response = server.complete(max_tokens=LONG)
    assert "--limit seconds" in refused(response, 504)["message"]
    assert response.headers["x-should-retry"] == "false"
    *pieces, last = events(server.complete(max_tokens=LONG, stream=True).text)
    assert pieces[0]["choices"][0]["text"]
    assert last["error"]["code"] == "too_slow"
    good(server.complete())


def test_hundreds_at_once_are_all_answered_alike(server: Server):
    """Each of 60 prompts, five times, half of them streamed: all answers to one prompt are the same."""

    def ask(number: int) -> tuple[int, str]:
        with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as client:
            body = {"model": NAME, "prompt": f"one two {number % 60}", "max_tokens": 4, "stream": number % 2 == 0}
            response = client.post("/v1/completions", json=body)
            assert response.status_code == 200, response.text
            if body["stream"]:
                return number % 60, "".join(each["choices"][0]["text"] for each in events(response.text))
            return number % 60, response.json()["choices"][0]["text"]

    with ThreadPoolExecutor(100) as threads:
        answers = list(threads.map(ask, range(300)))
    assert len(answers) == 300
    assert len(set(answers)) == 60


def test_a_seed_repeats_an_answer_while_others_ask(server: Server):
    options: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30, "seed": 11}
    alone = good(server.complete("one", **options))["choices"]
    with ThreadPoolExecutor(12) as threads:
        seeded = [threads.submit(server.complete, "one", **options) for _ in range(4)]
        others = [threads.submit(server.complete, f"two {n}", temperature=1.0, max_tokens=30) for n in range(12)]
        assert all(good(each.result())["choices"] == alone for each in seeded)
        assert all(good(each.result()) for each in others)


@pytest.fixture(scope="module")
def guarded(endless_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a token, of which two answers may wait; the last test stops it."""
    config = write_config(tmp_path_factory.mktemp("guarded") / "run.yaml", endless_model)
    options = ("--token-env", "SERVE_TOKEN", "--limit", "queue=2")
    with serving(config, *options, environment={"SERVE_TOKEN": TOKEN}, token=TOKEN) as server:
        yield server


def test_a_token_is_required_of_all_but_the_health_check(guarded: Server):
    for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": f"Basic {TOKEN}"}):
        for path in ("/v1/models", "/v1/chat/completions", "/openapi.json"):
            response = httpx.get(guarded.url + path, headers=headers, trust_env=False)
            assert refused(response, 401)["code"] == "invalid_api_key"
    assert httpx.get(f"{guarded.url}/healthz", trust_env=False).json() == {"status": "ok"}
    assert good(guarded.client.get("/v1/models"))["data"][0]["id"] == NAME
    assert TOKEN not in guarded.log.read_text()


def test_a_full_queue_refuses_and_a_client_that_goes_away_makes_room(guarded: Server):
    body = {"model": NAME, "prompt": "one", "max_tokens": LONG, "stream": True}
    with guarded.client.stream("POST", "/v1/completions", json=body) as running:
        lines = running.iter_lines()  # kept, since without it the connection would be closed
        next(lines)
        error = refused(guarded.complete(["a", "b", "c"], seed=1), 429)
        assert "0 answers already wait" in error["message"] and error["type"] == "rate_limit_error"
        with pytest.raises(httpx.ReadTimeout):
            guarded.client.post("/v1/completions", json={**body, "prompt": ["a", "b"], "stream": False}, timeout=1)
        with ThreadPoolExecutor(2) as threads:  # the two that waited are gone, so two more have room
            asked = [threads.submit(guarded.complete, "a") for _ in range(2)]
            time.sleep(2)
            response = guarded.complete("b")
            assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
            running.close()
            assert all(good(each.result())["choices"][0]["text"] for each in asked)
    good(guarded.complete())


def test_a_stop_ends_what_is_running(guarded: Server):
    body = {"model": NAME, "prompt": "one", "max_tokens": LONG, "stream": True}
    with guarded.client.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        begin = time.monotonic()
        assert guarded.stop() == 0
        assert time.monotonic() - begin < 30
        assert "the server is stopping" in "".join(lines)
    assert "Traceback" not in guarded.log.read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{guarded.url}/healthz", trust_env=False)
