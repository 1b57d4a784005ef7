"""The trainer's client against a hostile server: one clear error, in time and with little memory."""

import json
import re
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile.hostile_server import Answer, HostileServer, forever, hostile_server, replying, saying, silence
from hostile.hostile_values import ODD_JSON, json_values, profiles, require_readable, texts, tried
from posttrain.dataserver.schemas import GradeItem
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.client import transport
from posttrain.rl.client.client import DataserverClient

MIB = 2**20
META: dict[str, Any] = {
    "protocol_version": "1.0",
    "server_version": "1",
    "config_id": "c",
    "seed": 0,
    "prompts_per_iteration": 8,
    "iteration_stride": 1,
    "total_iterations": 4,
    "adaptive": False,
    "stages": [],
    "datasets": [],
    "graders": {},
    "limits": {
        "max_batch_size": 8,
        "max_items": 8,
        "max_body_bytes": 10_000,
        "max_completion_chars": 100,
        "grade_timeout_seconds": 1.0,
    },
}
ITEM = GradeItem(item_id="i", sample_id="s", completion="x")
ASKS: dict[str, Callable[[DataserverClient], object]] = {
    "/meta": lambda client: client.connect(0),
    "/sample": lambda client: client.sample(0, 0, 2),
    "/grade": lambda client: client.grade(0, "label", [ITEM]),
}
EACH_PATH = pytest.mark.parametrize("path", ASKS)


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def good_sample(slot: int) -> dict[str, Any]:
    return {
        "sample_id": f"s{slot}",
        "dataset": "d",
        "slot": slot,
        "messages": [{"role": "user", "content": "?"}],
    }


GOOD = {
    "/meta": as_json(META),
    "/readyz": b"{}",
    "/sample": as_json(
        {
            "iteration": 0,
            "stage": "s",
            "config_id": "c",
            "exhausted": False,
            "samples": [good_sample(0), good_sample(1)],
        }
    ),
}


@pytest.fixture
def server() -> Iterator[HostileServer]:
    with hostile_server({path: replying(body) for path, body in GOOD.items()}) as server:
        yield server


def a_client(server: HostileServer, **options: Any) -> DataserverClient:
    return DataserverClient(server.url, **{"run_id": "r", "retry_seconds": 0.0, "request_seconds": 5.0, **options})


def error_of(server: HostileServer, path: str, answer: Answer, seconds: float = 4.0, **options: Any) -> str | None:
    """Answer `path` this way and return the message of the client's error, or None if the answer is accepted.

    Any other exception fails the test, as does taking longer than `seconds`.
    """
    server.answers.update({other: replying(body) for other, body in GOOD.items()})
    server.answers[path] = answer
    begin = time.monotonic()
    with a_client(server, **options) as client:
        try:
            if path != "/meta":
                client.meta()
            ASKS[path](client)
        except (ServerError, ConfigError) as error:
            message = str(error)
        else:
            message = None
    assert time.monotonic() - begin < seconds
    if message is not None:
        require_readable(message)
        assert server.url in message
    return message


STATUSES = """200 OK|201 Created|204 No|301 Moved|302 Found|307 Here|400 Bad|401 Who|404 No|409 No|413 Big|422 What
429 Wait|500 Oh|503 Off|599 \x1b[31m|999 ?"""
statuses = st.sampled_from(re.split(r"[|\n]", STATUSES))
headers = st.sampled_from(
    [
        b"",
        b"Content-Type: text/html\r\n",
        b"Content-Encoding: gzip\r\n",
        b"Content-Encoding: br\r\n",
        b"Content-Encoding: no-such\r\n",
        b"Retry-After: 1e400\r\n",
        b"Retry-After: " + b"9" * 5000 + b"\r\n",
        b"Retry-After: Mon, 01 Jan 99999999999999999999 00:00:00 GMT\r\n",
        b"Retry-After: Mon, 32 Jan 2026 25:61:61 +9999999999\r\n",
        "Retry-After: ٣\r\n".encode(),
        b"Retry-After: \xff\r\n",
        b"Location: http://127.0.0.1:1/elsewhere\r\n",
        b"Location: //[\r\n",
        b"Location: \xff\x1b\r\n",
        b"Location: http://a:b:c/\r\n",
        b"Set-Cookie: a=b; Domain=\xff; Max-Age=-1e9\r\n",
        b"X: " + b"y" * 20_000 + b"\r\n",
    ]
)
problems = st.builds(
    lambda code, message, fields: as_json({"code": code, "message": message, "fields": fields}),
    st.sampled_from(["config_mismatch", "x"]) | texts,
    texts,
    st.lists(texts, max_size=3),
)


def altered(draw: st.DrawFn) -> bytes:
    """A valid answer with one value replaced."""
    value = json.loads(draw(st.sampled_from([GOOD["/meta"], GOOD["/sample"]])))
    here: Any = value
    while True:
        key = draw(st.sampled_from(sorted(here)) if isinstance(here, dict) else st.integers(0, len(here) - 1))
        if not (isinstance(here[key], dict | list) and here[key]) or draw(st.booleans()):
            break
        here = here[key]
    here[key] = "ODD"
    return json.dumps(value).encode().replace(b'"ODD"', draw(json_values).encode("utf-8", "surrogatepass"), 1)


bodies = (
    st.binary(max_size=60)
    | st.sampled_from(ODD_JSON).map(str.encode)
    | json_values.map(lambda text: text.encode("utf-8", "surrogatepass"))
    | problems
    | st.composite(altered)()
)


@EACH_PATH
@profiles(quick=60, long=1000)
def test_any_response_is_a_good_one_or_one_clear_error(server: HostileServer, path: str, examples: int):
    @tried(examples)
    @given(statuses, headers, bodies)
    def check(status: str, header: bytes, body: bytes) -> None:
        message = error_of(server, path, replying(body, status, header))
        if path == "/grade":
            assert message is not None  # none of these grades the item

    check()


@EACH_PATH
@profiles(quick=40, long=800)
def test_any_bytes_in_the_place_of_a_response_are_one_clear_error(server: HostileServer, path: str, examples: int):
    parts = st.sampled_from(
        [
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 ",
            b"\r\n",
            b"\r\n\r\n",
            b"Content-Length: 9\r\n",
            b"Content-Length: -9\r\n",
            b"Transfer-Encoding: chunked\r\n",
            b"fffffffffffffffff\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"{}",
            b"\0",
        ]
    )

    @tried(examples)
    @given(st.lists(parts | st.binary(max_size=20), max_size=6).map(b"".join))
    def check(said: bytes) -> None:
        assert error_of(server, path, saying(said)) is not None

    check()


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@EACH_PATH
@pytest.mark.parametrize(
    ("begin", "again"),
    [
        (b"", b"H"),
        (OK, b"X: y\r\n"),
        (OK + b"X: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (CHUNKED, b"1\r\n \r\n"),
        (CHUNKED + b"5;", b"x"),
        (OK + b"Content-Length: 1000\r\n\r\n", b" "),
        (OK + b"\r\n", b"["),
    ],
    ids=[
        "a status",
        "headers",
        "a header",
        "continuations",
        "chunks",
        "a chunk's size",
        "a body",
        "a body of no length",
    ],
)
def test_an_answer_that_comes_drop_by_drop_is_left_in_time(
    server: HostileServer, path: str, begin: bytes, again: bytes
):
    over = threading.Event()
    # Each byte arrives well within any socket timeout.
    dripping = forever(begin, again, over, seconds=0.05)
    message = error_of(server, path, dripping, seconds=3.0, request_seconds=0.4)
    over.set()
    assert message is not None and f"did not answer {path} within 0.4 s" in message


@EACH_PATH
def test_a_server_that_says_nothing_is_left_in_time(server: HostileServer, path: str):
    over = threading.Event()
    message = error_of(server, path, silence(over), seconds=3.0, request_seconds=0.4)
    over.set()
    assert message is not None and f"did not answer {path} within 0.4 s" in message


def test_a_server_that_takes_a_request_drop_by_drop_is_left_in_time(server: HostileServer):
    over = threading.Event()

    def sip(connection: Any) -> None:
        while not over.wait(0.05) and connection.recv(1):
            pass

    limits = {**META["limits"], "max_body_bytes": 64 * MIB, "max_completion_chars": 64 * MIB}
    server.answers["/meta"] = replying(as_json({**META, "limits": limits}))
    server.answers["/grade"] = sip
    # Incompressible, and more than the network buffers hold.
    completion = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(8 * MIB))
    begin = time.monotonic()
    with a_client(server, request_seconds=1.0) as client, pytest.raises(ServerError, match=r"within 1 s"):
        client.grade(0, "label", [GradeItem(item_id="i", sample_id="s", completion=completion)])
    over.set()
    assert time.monotonic() - begin < 15


@EACH_PATH
def test_an_answer_without_an_end_is_cut_off_by_a_limit(
    server: HostileServer, path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transport, "MAX_ANSWER_BYTES", 4 * MIB)
    flood = forever(OK + b"\r\n", b" " * 65536)
    tracemalloc.start()
    try:
        message = error_of(server, path, flood, seconds=20.0, retry_seconds=60.0, request_seconds=15.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message is not None and f"answered {path} with more than 4 MiB" in message
    assert peak < 16 * MIB


def test_nothing_packed_is_asked_for_or_unpacked(server: HostileServer):
    import gzip

    bomb = gzip.compress(bytes(64 * MIB))
    packed = replying(bomb, headers=b"Content-Encoding: gzip\r\n")
    tracemalloc.start()
    try:
        message = error_of(server, "/grade", packed)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert message is not None and "with an invalid body" in message
    assert peak < 16 * MIB
    assert all(b"accept-encoding: identity" in head.lower() for head in server.asked)


@EACH_PATH
@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Here", "308 There"])
def test_nobody_is_sent_elsewhere(server: HostileServer, path: str, status: str):
    with hostile_server({path: replying(GOOD.get(path, b"{}"))}) as elsewhere:
        away = replying(b"", status, f"Location: {elsewhere.url}{path}\r\n".encode())
        message = error_of(server, path, away, token="a-token-that-is-secret")
        assert elsewhere.asked == []
    assert message is not None and f"and points to {elsewhere.url}{path}; is this the address" in message
    assert "a-token-that-is-secret" not in message


IMPOSSIBLE = [
    *[("limits", name, value) for name in META["limits"] for value in (0, -1, -(10**30), 10**400)],
    *[("", name, value) for name in ("prompts_per_iteration", "iteration_stride") for value in (0, -1, 10**400)],
    ("", "total_iterations", 0),
]


@pytest.mark.parametrize(("section", "name", "value"), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_a_server_that_describes_itself_impossibly_is_not_believed(
    server: HostileServer, section: str, name: str, value: int
):
    told = {**META, "limits": {**META["limits"]}}
    (told[section] if section else told)[name] = value
    message = error_of(server, "/meta", replying(as_json(told)))
    assert message is not None and name in message


def test_a_promise_of_an_age_of_the_universe_is_not_waited_for(server: HostileServer):
    limits = {**META["limits"], "grade_timeout_seconds": 1e18}
    server.answers["/meta"] = replying(as_json({**META, "limits": limits}))
    with a_client(server, request_seconds=None) as client:
        assert [sample.slot for sample in client.sample(0, 0, 2)] == [0, 1]


@pytest.mark.parametrize("odd", ["\x1b[31m", "\u202e", "x" * 100_000, "\ud800"], ids=ascii)
def test_what_a_server_says_of_itself_never_steers_the_terminal(server: HostileServer, odd: str):
    answers = {
        "/meta": [{**META, "protocol_version": odd}, {**META, "graders": {odd: 7}}, {odd: 1}],
        "/sample": [{"iteration": 0, "stage": odd, "config_id": odd, "exhausted": False, "samples": []}],
        "/grade": [
            {"request_id": odd, "iteration": 0, "stage": odd, "config_id": "c", "results": []},
            {"request_id": odd, "iteration": 0, "stage": odd, "config_id": odd, "results": [{"item_id": odd}]},
        ],
    }
    for path, bodies in answers.items():
        for body in bodies:
            assert error_of(server, path, replying(as_json(body))) is not None
        for status in ("401 No", "404 No", "409 No", "422 No", "500 No"):
            problem = {"code": "config_mismatch", "message": odd, "fields": [odd] * 50}
            assert error_of(server, path, replying(as_json(problem), status)) is not None
