"""Requests that no trainer sends: the server explains the problem with a status below 500 and keeps running."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataserver.serving import Server, a_config, serving
from hostile.hostile_values import NUMBERS, ODD_JSON, ODD_TEXTS, json_objects, json_values, profiles, texts, tried

MIB = 2**20
LIMITS = {"workers": 1, "body_mb": 1, "grade_seconds": 5, "grader_seconds": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("hostile") / "config", limits=LIMITS)) as server:
        yield server


def require_answered(server: Server, status: int, content: bytes) -> None:
    """Check that the response is a success or one clear error, and that the server still responds."""
    assert status == 200 or 400 <= status < 500, (status, content[:500])
    if status != 200:
        problem = json.loads(content)
        assert problem["message"].strip() and problem["code"]
        assert len(content) < 10_000
    assert server.client.get("/healthz").status_code == 200


SAMPLE = {"iteration": 0, "batch_size": 1}
STEP = {"run_id": "run", "step": 0}
FIELDS = [
    "iteration",
    "batch_size",
    "offset",
    "slots",
    "attempt",
    "split",
    "config_id",
    "run_id",
    "request_id",
    "items",
]
STEP_FIELDS = ["run_id", "step", "numbers", "groups", "first"]
ITEM_FIELDS = ["item_id", "sample_id", "completion", "completion_tokens", "truncated", "slot", "attempt", "rollout"]
items = json_objects(ITEM_FIELDS).map(lambda item: f"[{item}]") | json_values
bodies = (
    st.sampled_from(ODD_JSON)
    | json_objects([*FIELDS, *STEP_FIELDS])
    | st.builds(
        lambda body, field, value: json.dumps(body)[:-1] + f', "{field}": {value}}}',
        st.sampled_from([SAMPLE, STEP]),
        st.sampled_from([*FIELDS, *STEP_FIELDS]),
        json_values,
    )
    | st.builds(lambda items: f'{{"iteration": 0, "request_id": "r", "items": {items}}}', items)
)
kinds = st.sampled_from(
    ["application/json", "text/plain", "", "application/json; charset=utf-16", "multipart/form-data"]
)


@profiles(quick=120, long=1500)
def test_any_body_gets_an_answer(server: Server, examples: int):
    @tried(examples)
    @given(st.sampled_from(["/sample", "/grade", "/steps"]), bodies | texts, kinds)
    def check(path: str, body: str, kind: str) -> None:
        content = body.encode("utf-8", "surrogatepass")
        response = server.client.post(path, content=content, headers={"Content-Type": kind})
        require_answered(server, response.status_code, response.content)

    check()


numbers = st.sampled_from(NUMBERS) | st.integers()


@profiles(quick=120, long=1500)
def test_any_number_and_any_name_in_a_right_request_gets_an_answer(server: Server, examples: int):
    sample_id = server.sample(0, 1).samples[0].sample_id
    names = st.sampled_from([sample_id, sample_id + "x", sample_id[:-1], *ODD_TEXTS]) | texts

    @tried(examples)
    @given(numbers, numbers, numbers, names, names, names, texts)
    def check(iteration: Any, count: Any, offset: Any, one: str, other: str, run: str, said: str) -> None:
        sample = {"iteration": iteration, "batch_size": count, "offset": offset, "config_id": one, "run_id": run}
        item = {"item_id": other, "sample_id": one, "completion": said, "completion_tokens": count, "slot": offset}
        grade = {"iteration": iteration, "request_id": run, "run_id": other, "items": [item]}
        short = {key: sample[key] for key in ("iteration", "batch_size")}
        others = {"iteration": iteration, "slots": [offset], "attempt": count}
        group = {
            "slot": offset,
            "sample_id": one,
            "dataset": other,
            "verdict": said,
            "trained": True,
            "mean_reward": count,
            "age": offset,
        }
        step = {"run_id": run, "step": iteration, "numbers": {one: count, other: offset}, "groups": [group]}
        sent = (("/sample", sample), ("/sample", short), ("/sample", others), ("/grade", grade), ("/steps", step))
        for path, body in sent:
            response = server.client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
            require_answered(server, response.status_code, response.content)

    check()


QUERIES = ["run", "since", "dataset", "split", "status", "iteration", "limit", "before", "x"]


@profiles(quick=80, long=1500)
def test_any_question_of_the_page_gets_an_answer(server: Server, examples: int):
    values = texts.map(lambda text: text.encode("utf-8", "replace").decode()) | numbers.map(str)

    @tried(examples)
    @given(
        st.sampled_from(["/ui/data", "/ui/completions", "/ui/completions/"]),
        st.dictionaries(st.sampled_from(QUERIES), values, max_size=4),
        values,
    )
    def check(path: str, query: dict[str, str], row: str) -> None:
        last = re.sub(r"[^\w.-]", "_", row)[:200] or "0"
        response = server.client.get(path + last if path.endswith("/") else path, params=query)
        if response.status_code == 200:
            assert response.json()
        else:
            require_answered(server, response.status_code, response.content)

    check()


BODY = json.dumps(SAMPLE).encode()
HEAD = b"POST /sample HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# Bytes that are not HTTP, or contradict themselves.
NO_REQUESTS = {
    "nothing": b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    "a length that is no number": HEAD + b"Content-Length: many\r\n\r\n" + BODY,
    "a length below zero": HEAD + b"Content-Length: -1\r\n\r\n" + BODY,
    "a length beyond all numbers": HEAD + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + BODY,
    "a length in odd digits": HEAD + "Content-Length: ٣\r\n\r\n".encode() + BODY,
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 30\r\n\r\n" + BODY,
    "a length that is too short": HEAD + b"Content-Length: 5\r\n\r\n" + BODY,
    "a length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks of no size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "chunks below zero": HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n",
    "another way to cut it": HEAD + b"Transfer-Encoding: gzip, identity\r\n\r\n" + BODY,
    "a header without a colon": HEAD + b"Nonsense\r\n\r\n",
    "a header with a NUL": HEAD + b"X: a\0b\r\n\r\n",
    "a header without an end": HEAD + b"X: " + b"a" * MIB,
    "thousands of headers": HEAD + b"".join(b"X%d: 1\r\n" % number for number in range(20_000)) + b"\r\n",
    "a path without an end": b"GET /" + b"a" * MIB + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that leads up": b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path with a NUL": b"GET /ui\0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a path that steers": b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a method of its own": b"BREW /meta HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another version": b"GET /meta HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /meta HTTP/1.1\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a socket of its own": b"GET /meta HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
}


def said_to(server: Server, sent: bytes) -> bytes:
    """Send these bytes, shut down the sending side, and return the whole answer."""
    answer = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        with suppress(OSError):  # the server stops reading what is too long
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while part := connection.recv(65536):
                answer += part
    return answer


@pytest.mark.parametrize("sent", NO_REQUESTS.values(), ids=NO_REQUESTS.keys())
def test_what_is_no_request_is_never_a_failure_of_the_server(server: Server, sent: bytes):
    answer = said_to(server, sent)
    statuses = re.findall(rb"^HTTP/1\.1 (\d{3})", answer, re.MULTILINE)
    assert all(int(status) < 500 for status in statuses), answer[:500]
    assert len(server.sample(0, 1).samples) == 1


@profiles(quick=60, long=1500)
def test_any_bytes_on_the_wire_leave_the_server_alive(server: Server, examples: int):
    parts = st.sampled_from(
        [HEAD, b"\r\n", b"\r\n\r\n", b"Content-Length: 7\r\n", b"Transfer-Encoding: chunked\r\n", BODY]
    )

    @tried(examples)
    @given(st.lists(parts | st.binary(max_size=30), max_size=5).map(b"".join))
    def check(sent: bytes) -> None:
        assert not re.search(rb"^HTTP/1\.1 5", said_to(server, sent), re.MULTILINE)
        assert server.client.get("/healthz").status_code == 200

    check()


def test_no_request_of_these_was_logged_as_a_failure(server: Server):
    log = server.log.read_text(errors="replace")
    assert "Traceback" not in log and "ERROR" not in log, log[-3000:]
    assert not re.search(r'status="5\d\d"', server.client.get("/metrics").text)
