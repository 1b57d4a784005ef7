"""Requests that are too large, too many or too early are refused promptly and cheaply, and can be retried."""

import gzip
import json
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dataserver.serving import Server, a_config, good, serving, until

MIB = 2**20
LIMIT = MIB // 2
LIMITS = {
    "workers": 2,
    "body_mb": 0.5,
    "queue_items": 8,
    "completion_chars": 5000,
    "grader_seconds": 0.9,
    "grade_seconds": 1.0,
    "cache_mb": 1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("limits") / "config", limits=LIMITS)) as server:
        yield server


@pytest.fixture(scope="module")
def sample_id(server: Server) -> str:
    return server.sample(0, 1).samples[0].sample_id


def items(sample_id: str, completions: list[str]) -> list[dict[str, Any]]:
    return [
        {"item_id": str(number), "sample_id": sample_id, "completion": completion}
        for number, completion in enumerate(completions)
    ]


def wire(server: Server, *headers: str) -> socket.socket:
    """A connection on which a POST to /grade has begun."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    lines = ["POST /grade HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    connection.sendall("\r\n".join(lines).encode())
    return connection


def received(connection: socket.socket) -> bytes:
    """Everything the server sends until it closes the connection."""
    answer = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer


def memory(server: Server) -> int:
    """Resident memory of the server process, in bytes."""
    return psutil.Process(server.process.pid).memory_info().rss


def test_a_body_that_grows_too_large_is_not_read_to_its_end(server: Server) -> None:
    sent, chunk = 0, b"10000\r\n" + b" " * 65536 + b"\r\n"
    with wire(server, "Transfer-Encoding: chunked") as connection:
        with suppress(ConnectionError):
            while sent < 1024 * MIB:
                connection.sendall(chunk)
                sent += 65536
        answer = received(connection)

    assert b" 413 " in answer.splitlines()[0]
    # Data the server did not read is in network buffers: a few MiB at most.
    assert LIMIT < sent < 32 * MIB


def test_a_body_that_says_it_is_too_large_is_not_waited_for(server: Server) -> None:
    begin = time.monotonic()

    with wire(server, f"Content-Length: {LIMIT + 1}") as connection:
        answer = received(connection)

    assert b" 413 " in answer.splitlines()[0]
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == {
        "code": "too_large",
        "message": "the body is larger than 0.5 MiB (limits.body_mb); send fewer items",
        "fields": [],
    }
    assert time.monotonic() - begin < 2
    assert 'dataserver_requests_total{endpoint="/grade",status="413"}' in server.client.get("/metrics").text


def test_a_client_is_told_before_it_sends_a_body_that_is_too_large(server: Server) -> None:
    with wire(server, f"Content-Length: {LIMIT + 1}", "Expect: 100-continue") as connection:
        assert received(connection).startswith(b"HTTP/1.1 413 ")


def test_a_body_of_just_the_limit_is_taken(server: Server) -> None:
    body = json.dumps({"iteration": 0, "batch_size": 1}).encode()
    headers = {"Content-Type": "application/json"}

    for packed, encoding in ((False, "identity"), (True, "gzip")):
        for size, status in ((LIMIT, 200), (LIMIT + 1, 413)):
            content = body.ljust(size)
            response = server.client.post(
                "/sample",
                content=gzip.compress(content) if packed else content,
                headers={**headers, "Content-Encoding": encoding},
            )
            assert (response.status_code, packed) == (status, packed)


def test_a_body_that_unpacks_to_something_huge_is_refused_and_costs_no_memory(server: Server) -> None:
    bomb = gzip.compress(bytes(300 * MIB), compresslevel=6)
    assert len(bomb) < LIMIT
    before = memory(server)

    responses = [
        server.client.post("/grade", content=bomb, headers={"Content-Encoding": "gzip"}).status_code for _ in range(5)
    ]

    assert responses == [413] * 5
    assert memory(server) - before < 16 * MIB


def test_a_client_that_goes_away_is_counted_as_such(server: Server) -> None:
    with wire(server, "Content-Length: 100") as connection:
        connection.sendall(b"{")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    until(lambda: 'dataserver_requests_total{endpoint="/grade",status="499"} 1.0' in server.client.get("/metrics").text)
    assert 'status="500"' not in server.client.get("/metrics").text


def test_a_completion_that_is_too_long_costs_its_own_reward(server: Server, sample_id: str) -> None:
    results = server.grade(items(sample_id, ["x" * 5000, "x" * 5001, "x"]), "long").results

    assert [(result.status, result.reason) for result in results] == [
        ("ok", ""),
        ("error", "the completion is longer than 5000 characters"),
        ("ok", ""),
    ]


def test_an_answer_comes_in_time_with_what_is_done_and_the_rest_can_be_asked_again(
    server: Server, sample_id: str
) -> None:
    asked = items(sample_id, [f"{order} {n}" for order in ("in time", "sleep 0.7") for n in range(4)])
    begin = time.monotonic()

    first = server.grade(asked, "slow").results

    assert time.monotonic() - begin < 2
    reason = "deadline: the graders did not finish within limits.grade_seconds"
    expected = [*[("ok", 0.0, "")] * 4, *[("abstain", None, reason)] * 4]
    assert [(result.status, result.reward, result.reason) for result in first] == expected

    until(lambda: server.counter("waiting_completions") == 0)
    again = server.grade(asked, "slow").results
    assert [result.status for result in again] == ["ok"] * 8
    calls = (server.log.parent / "calls").read_text().splitlines()
    completions = [repr(item["completion"]) for item in asked]
    assert sorted(call for call in calls if call in completions) == completions


def test_a_full_queue_refuses_more_and_recovers(server: Server, sample_id: str) -> None:
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(server.grade, items(sample_id, [f"sleep 0.3 full {n}" for n in range(8)]), "full")
        until(lambda: server.counter("waiting_completions") > 0)
        more = {"iteration": 0, "request_id": "more", "items": items(sample_id, [f"more {n}" for n in range(8)])}
        refused = server.client.post("/grade", json=more)
        assert refused.status_code == 429
        assert refused.json()["code"] == "overloaded"
        assert int(refused.headers["Retry-After"]) >= 1
        # Prompts are served even while the queue is full.
        assert server.sample(0, 1)
        slow.result()
    until(lambda: server.counter("waiting_completions") == 0)

    assert [result["status"] for result in good(server.client.post("/grade", json=more))["results"]] == ["ok"] * 8


def test_an_idle_server_takes_more_items_than_its_queue_has_places(server: Server, sample_id: str) -> None:
    until(lambda: server.counter("waiting_completions") == 0)

    results = server.grade(items(sample_id, [f"not so many {number}" for number in range(9)]), "nine").results

    assert [result.status for result in results] == ["ok"] * 9


def test_memory_stays_flat(server: Server, sample_id: str) -> None:
    def ask(requests: range) -> int:
        for number in requests:
            completions = [f"{number} {try_} " + "x" * 4000 for try_ in range(4)]
            server.grade(items(sample_id, completions), f"flat {number}")
            for offset in (0, 4):
                server.sample(number % 6, 4, offset=offset)
        return memory(server)

    warm = ask(range(300))

    # 1200 requests send 6 MiB of completions through a cache of 1 MiB.
    assert ask(range(300, 700)) - warm < 4 * MIB


def test_requests_are_refused_until_the_server_is_ready(tmp_path: Path) -> None:
    config = a_config(tmp_path / "config")
    # The grader's module waits until this file is removed.
    gate = config.with_name("wait")
    gate.touch()
    with serving(config, wait=False) as server:
        assert server.client.get("/healthz").json() == {"status": "ok"}
        assert server.client.get("/meta").status_code == 200
        assert server.counter("ready") == 0
        refused = [
            server.client.get("/readyz"),
            server.client.post("/sample", json={"iteration": 0, "batch_size": 1}),
            server.client.post("/grade", json={"iteration": 0, "request_id": "a", "items": items("b", ["c"])}),
        ]
        assert [response.status_code for response in refused] == [503] * 3
        assert {response.json()["code"] for response in refused} == {"not_ready"}
        assert all(int(response.headers["Retry-After"]) >= 1 for response in refused)
        assert not server.ready_file.exists()

        gate.unlink()
        until(lambda: server.client.get("/readyz").status_code == 200, server.process, server.log)

        assert server.sample(0, 1)
        until(server.ready_file.exists, server.process, server.log)
        told = json.loads(server.ready_file.read_text())
        meta = good(server.client.get("/meta"))
        assert told == {"url": server.url, "pid": server.process.pid, "config_id": meta["config_id"]}
