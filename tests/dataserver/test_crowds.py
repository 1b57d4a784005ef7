"""What many or hostile clients can occupy at once is bounded, even before they are authenticated."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from select import select

import psutil
import pytest

from dataserver.serving import Server, a_config, serving, until

KIB = 2**10
CONNECTIONS = 12
LIMITS = {
    "workers": 1,
    "body_mb": 0.5,
    "bodies_mb": 1,
    "receive_seconds": 1.5,
    "connections": CONNECTIONS,
    "grader_seconds": 1,
    "grade_seconds": 5,
}
HEAD = b"POST /grade HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("crowds") / "config", limits=LIMITS)) as server:
        yield server


def connected(server: Server, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    # The server stops reading a request that is too long, so sending the rest may fail.
    with suppress(ConnectionError):
        connection.sendall(sent)
    return connection


def received(connection: socket.socket) -> bytes:
    """Everything the server sends until it closes the connection."""
    answer = b""
    with connection, suppress(ConnectionError):
        while part := connection.recv(65536):
            answer += part
    return answer


def require_told(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:300]
    assert b"connection: close" in head.lower()
    assert json.loads(body)["code"] == code and json.loads(body)["message"]


@pytest.mark.parametrize(
    "head",
    [
        HEAD + b"X: " + b"a" * 20 * KIB,
        HEAD + b"".join(b"X%d: 1\r\n" % number for number in range(3000)) + b"\r\n",
        HEAD + b"X: " + b"a" * 20 * KIB + b"\r\n\r\n",
        b"GET /" + b"a" * 20 * KIB,
    ],
    ids=["no end", "many", "long", "path"],
)
def test_a_head_of_more_than_16_kib_is_refused_before_it_is_over(server: Server, head: bytes):
    require_told(received(connected(server, head)), 431, "too_large")
    assert server.client.get("/healthz").status_code == 200


def test_a_second_request_on_a_connection_has_no_longer_head_either(server: Server):
    sent = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HEAD + b"X: " + b"a" * 40 * KIB
    # The connection is closed without a second answer if the first is still being sent.
    assert received(connected(server, sent)).count(b"HTTP/1.1 ") <= 2


@pytest.mark.parametrize(
    "begin",
    [
        HEAD + b"X: ",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nX: ",
    ],
    ids=["header", "trailer", "trailer of GET"],
)
def test_a_header_that_goes_on_for_ever_is_read_no_further(server: Server, begin: bytes):
    sent, part = 0, b"a" * 64 * KIB
    with connected(server, begin) as connection, suppress(ConnectionError):
        while sent < 256 * 2**20:
            connection.sendall(part)
            sent += len(part)
    # Unread data is in network buffers: a few MiB at most.
    assert sent < 32 * 2**20


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /healthz HTT",
        HEAD + b"X: a",
        HEAD + b"Content-Length: 100\r\n\r\n{",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTT",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
    ],
    ids=["nothing", "path", "header", "body", "chunk", "second", "body of GET"],
)
def test_a_request_that_does_not_come_to_its_end_is_ended(server: Server, sent: bytes):
    connection = connected(server, sent)
    begin = time.monotonic()
    answer = received(connection)
    # The socket's own timeout is 30 seconds.
    assert time.monotonic() - begin < 20
    if not sent:
        assert answer == b""
    elif b"\r\n\r\n" not in sent:
        require_told(answer, 408, "too_slow")


def test_a_request_that_comes_drop_by_drop_is_ended_all_the_same(server: Server):
    connection = connected(server)
    dropped = 0
    with suppress(ConnectionError):
        for drop in HEAD * 20:
            connection.sendall(bytes([drop]))
            dropped += 1
            time.sleep(0.05)
    assert dropped < 400


def test_a_connection_that_is_used_stays_open_for_longer(server: Server):
    with connected(server) as connection:
        for _ in range(4):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b'"ok"}' not in answer:
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.8)


def test_connections_beyond_the_limit_are_told_to_come_back(server: Server):
    own = psutil.Process(server.process.pid)
    until(lambda: len([each for each in own.net_connections("tcp") if each.status == "ESTABLISHED"]) <= 1)
    server.client.get("/healthz")
    with ExitStack() as stack:
        held = [stack.enter_context(connected(server)) for _ in range(CONNECTIONS + 5)]
        # The test's own client holds one more.
        until(lambda: len(select(held, [], [], 0)[0]) == 6)
        for each in select(held, [], [], 0)[0]:
            require_told(received(each), 503, "unavailable")
        # Open connections are still served.
        assert server.client.get("/healthz").status_code == 200


def test_all_bodies_together_take_a_bounded_room(server: Server):
    head = HEAD + b"Content-Length: %d\r\n\r\n" % (450 * KIB)
    with ExitStack() as stack:
        first, second = (stack.enter_context(connected(server, head + b" " * 449 * KIB)) for _ in range(2))
        # All bodies share 1 MiB, which is less than three times 449 KiB.
        with connected(server, head + b" " * 449 * KIB) as third:
            require_told(received(third), 429, "overloaded")
        for each in (first, second):
            each.sendall(b" " * KIB)
            assert each.recv(65536).startswith(b"HTTP/1.1 422")
    # The memory is freed afterwards.
    for _ in range(5):
        response = server.client.post("/grade", content=b" " * 450 * KIB, headers={"Content-Type": "application/json"})
        assert response.status_code == 422
