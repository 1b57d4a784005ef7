"""Malformed requests and odd model output: each gets an answer, never a 500."""

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from dataserver.serving import Server, a_config, gold_of, good, serving
from posttrain.dataserver.metrics import Metrics
from posttrain.dataserver.web.refusals import failure_response
from posttrain.web.logs import JsonLines
from posttrain.web.middleware import RequestLog

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"workers": 2, "body_mb": 8, "completion_chars": 1_000_000}
    with serving(a_config(tmp_path_factory.mktemp("wire") / "config", limits=limits)) as server:
        yield server


@pytest.fixture(scope="module")
def sample_id(server: Server) -> str:
    return server.sample(0, 1).samples[0].sample_id


def grade_body(sample_id: str, completion: str, request_id: str, **more: Any) -> dict[str, Any]:
    item = {"item_id": "a", "sample_id": sample_id, "completion": completion, **more}
    return {"iteration": 0, "request_id": request_id, "items": [item]}


def post(server: Server, content: bytes, path: str = "/grade", **headers: str) -> httpx.Response:
    return server.client.post(path, content=content, headers={**JSON, **headers})


def refused(response: httpx.Response, status: int) -> dict[str, Any]:
    """The body of a refusal, which must have the common form."""
    assert response.status_code == status, response.text[:500]
    problem = response.json()
    assert set(problem) == {"code", "message", "fields"}
    return problem


@pytest.mark.parametrize(
    "completion",
    [
        "",
        " ",
        "\0",
        "a\0b",
        "\n" * 1000,
        "🙂👩‍👩‍👧 \U0010ffff",
        "‮right to left",
        "\ufeff",
        "\ufffe\uffff",
        "x" * 1_000_000,
        "é" * 500_000,
    ],
    ids=range(11),
)
def test_every_text_gets_a_reward(server: Server, sample_id: str, completion: str) -> None:
    answer = server.grade(grade_body(sample_id, completion, "")["items"], f"text {len(completion)} {completion[:20]!r}")

    assert [(result.status, result.reward) for result in answer.results] == [("ok", 0.0)]


@pytest.mark.parametrize(
    "text",
    [b"\\ud800", b"a\\udfffb", b"\\ud83d alone", b"\\udc00\\ud800", b"\\uD83D\\uD83D\\uDE42"],
    ids=["high", "low", "emoji", "swapped", "doubled"],
)
def test_half_a_surrogate_pair_is_graded_as_a_replacement_character(
    server: Server, sample_id: str, text: bytes
) -> None:
    gold = gold_of(server.sample(0, 1).samples[0]).encode()
    body = json.dumps(grade_body(sample_id, "TEXT", f"half {text!r}")).encode().replace(b"TEXT", gold + b" " + text)

    result = good(post(server, body))["results"][0]

    assert (result["status"], result["reward"]) == ("ok", 1.0)


def test_half_surrogate_pairs_do_no_harm_in_ids_and_keys_either(server: Server, sample_id: str) -> None:
    body = json.dumps(grade_body(sample_id, "x", "ids")).replace('"a"', '"\\ud800"').replace("ids", "\\udfff")
    assert good(post(server, body.encode()))["results"][0]["item_id"] == "\ufffd"

    strange = json.dumps(grade_body(sample_id, "x", "keys")).replace('"completion"', '"\\ud800"')
    assert refused(post(server, strange.encode()), 422)["fields"] == ["items.0.completion", "items.0.\ufffd"]


@pytest.mark.parametrize(
    "text", [b"\xed\xa0\x80", b"\xff", b"\xc3", b"\xc0\x80"], ids=["surrogate", "ff", "cut", "long"]
)
@pytest.mark.parametrize("place", [b"COMPLETION", b"slot"])
def test_a_body_that_is_no_utf8_is_refused(server: Server, sample_id: str, text: bytes, place: bytes) -> None:
    body = json.dumps(grade_body(sample_id, "COMPLETION", "bytes", slot=0)).encode().replace(place, text)

    assert "UTF-8" in refused(post(server, body), 422)["message"]


def test_a_body_in_another_encoding_is_refused(server: Server, sample_id: str) -> None:
    text = json.dumps(grade_body(sample_id, "x", "encodings"))

    for encoding in ("utf-16", "utf-16-le", "utf-32", "utf-8-sig"):
        refused(post(server, text.encode(encoding)), 422)


@pytest.mark.parametrize("body", [b" ", b"{", b'{"iteration": 0,}', b"nothing", b"{'iteration': 0}", b"\0"])
def test_what_is_no_json_is_refused(server: Server, body: bytes) -> None:
    assert "not JSON" in refused(post(server, body, "/sample"), 422)["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"null", "body"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b"7", "body"),
        (b"{}", "iteration"),
        (b'{"iteration": NaN, "batch_size": 1}', "iteration"),
        (b'{"iteration": Infinity, "batch_size": 1}', "iteration"),
        (b'{"iteration": 0, "batch_size": -Infinity}', "batch_size"),
        (b'{"iteration": 1e400, "batch_size": 1}', "iteration"),
        (b'{"iteration": 1.5, "batch_size": 1}', "iteration"),
        (b'{"iteration": "three", "batch_size": 1}', "iteration"),
        (b'{"iteration": [0], "batch_size": 1}', "iteration"),
        (b'{"iteration": 0, "batch_size": null}', "batch_size"),
        (b'{"iteration": 0, "batch_size": 1, "run_id": 7}', "run_id"),
        (b'{"iteration": 0, "batch_size": 1, "bogus": NaN}', "bogus"),
    ],
)
def test_a_malformed_request_is_refused_with_the_field(server: Server, body: bytes, field: str) -> None:
    problem = refused(post(server, body, "/sample"), 422)

    assert problem["code"] == "bad_request"
    assert field in problem["fields"]
    assert f"{field}: " in problem["message"]


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"items":[', b'{"iteration":0,"request_id":"d","items":['])
@pytest.mark.parametrize("depth", [300, 100_000])
def test_json_that_is_nested_too_deep_is_refused(server: Server, opening: bytes, depth: int) -> None:
    closing = {b"[": b"]", b'{"a":': b"}"}.get(opening, b"")
    for body in (opening * depth, opening * depth + b'"\\ud800"' + closing * depth):
        refused(post(server, body), 422)


def test_a_number_of_a_million_digits_is_refused(server: Server) -> None:
    refused(post(server, b'{"iteration": ' + b"9" * 1_000_000 + b', "batch_size": 1}', "/sample"), 422)


def test_huge_numbers_are_graded_or_refused(server: Server, sample_id: str) -> None:
    for number in (2**31, 2**63 - 1, 2**63, 10**30):
        for field in ("completion_tokens", "slot"):
            body = grade_body(sample_id, "x", f"huge {field} {number}", **{field: number})
            assert server.client.post("/grade", json=body).status_code in (200, 422)
        late = {**grade_body(sample_id, "x", f"huge {number}"), "iteration": number}
        assert server.client.post("/grade", json=late).status_code in (200, 422)
        assert server.client.post("/sample", json={"iteration": number, "batch_size": 1}).status_code in (200, 422)


def test_a_refusal_is_short_however_long_the_request_is(server: Server) -> None:
    for body in (
        {"x" * 1_000_000: 1},
        {"iteration": "x" * 1_000_000},
        {"iteration": 0, "batch_size": 1, "config_id": "x" * 1_000_000},
        {f"field {number}": 1 for number in range(50_000)},
    ):
        response = server.client.post("/sample", json=body)

        assert response.status_code in (409, 422)
        assert len(response.content) < 100_000


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", ""])
def test_another_content_type_is_refused(server: Server, kind: str) -> None:
    response = server.client.post(
        "/sample", content=b'{"iteration": 0, "batch_size": 1}', headers={"Content-Type": kind}
    )

    refused(response, 422)


@pytest.mark.parametrize(
    "kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"]
)
def test_json_may_be_called_by_its_variants(server: Server, kind: str) -> None:
    body = b'{"iteration": 0, "batch_size": 1}'

    assert server.client.post("/sample", content=body, headers={"Content-Type": kind}).status_code == 200


def test_other_paths_and_methods_are_refused(server: Server) -> None:
    assert refused(server.client.get("/nothing"), 404)["message"] == "Not Found"
    assert refused(server.client.get("/grade"), 405)["message"] == "Method Not Allowed"
    assert refused(server.client.delete("/meta"), 405)
    assert refused(server.client.put("/sample", json={}), 405)


def test_what_a_grader_says_does_no_harm(server: Server, sample_id: str) -> None:
    orders = ["say-half-a-pair", "raise-half-a-pair", "raise a\0b", "raise " + "x" * 5000, "fine"]
    items = [
        {"item_id": str(number), "sample_id": sample_id, "completion": order} for number, order in enumerate(orders)
    ]

    results = server.grade(items, "odd details").results

    assert [result.status for result in results] == ["ok", "error", "error", "error", "ok"]
    assert results[0].components["orders"].detail == "? and NUL \0"
    assert results[1].components["orders"].detail == "ValueError: ?"
    assert len(results[3].components["orders"].detail) <= 500


def test_a_packed_body_is_unpacked(server: Server) -> None:
    body = json.dumps({"iteration": 1, "batch_size": 8}).encode()

    packed = post(server, gzip.compress(body), "/sample", **{"Content-Encoding": "gzip"})

    assert good(packed) == good(post(server, body, "/sample"))
    assert good(post(server, body, "/sample", **{"Content-Encoding": "identity"})) == good(packed)


@pytest.mark.parametrize("end", [5, 15, -8, -1])
def test_a_packed_body_that_is_cut_is_refused(server: Server, end: int) -> None:
    packed = gzip.compress(json.dumps({"iteration": 1, "batch_size": 8}).encode())

    problem = refused(post(server, packed[:end], "/sample", **{"Content-Encoding": "gzip"}), 422)

    assert problem["message"] == "the gzip body is truncated"


def test_a_packed_body_with_something_behind_it_is_refused(server: Server) -> None:
    packed = gzip.compress(json.dumps({"iteration": 1, "batch_size": 8}).encode())

    for tail in (b"tail", packed):
        refused(post(server, packed + tail, "/sample", **{"Content-Encoding": "gzip"}), 422)


def test_a_body_that_is_not_what_its_encoding_says_is_refused(server: Server) -> None:
    body = json.dumps({"iteration": 1, "batch_size": 8}).encode()

    for encoding, content in (("gzip", body), ("gzip", b""), ("br", body), ("gzip, gzip", body), ("deflate", body)):
        refused(post(server, content, "/sample", **{"Content-Encoding": encoding}), 422)


def test_a_request_keeps_its_id_if_it_is_a_sensible_one(server: Server) -> None:
    for sent in ("abc-1.2:3_X", "x" * 100):
        assert server.client.get("/healthz", headers={"X-Request-ID": sent}).headers["X-Request-ID"] == sent
    for sent in ("", "two words", "x" * 101, "a\tb", "é", "<script>", "%0d%0aevil"):
        given_back = server.client.get("/healthz", headers=[(b"X-Request-ID", sent.encode())]).headers["X-Request-ID"]
        assert re.fullmatch(r"[0-9a-f]{32}", given_back)
    assert server.client.post("/grade", headers={"X-Request-ID": "refused"}).headers["X-Request-ID"] == "refused"


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["iteration", "batch_size", "request_id", "items", "item_id", "sample_id", "completion"]
                    )
                    | st.text(max_size=3),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=12,
        ),
    )
)
def test_no_body_breaks_the_server(server: Server, body: Any) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    for path in ("/sample", "/grade"):
        assert post(server, content, path).status_code in (200, 422)


def test_a_failure_is_told_with_the_id_under_which_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError("nobody thought of that")

    async def ask() -> httpx.Response:
        metrics = Metrics()
        transport = httpx.ASGITransport(RequestLog(broken, ["/grade"], failure_response, metrics.request))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.post("/grade", headers={"X-Request-ID": "mine"})
        assert b'dataserver_requests_total{endpoint="/grade",status="500"} 1.0' in metrics.exposition()
        return response

    problem = refused(response := asyncio.run(ask()), 500)

    assert problem["code"] == "internal"
    assert "see its log for the request id mine" in problem["message"]
    assert "nobody thought" not in response.text
    (record,) = caplog.records
    assert json.loads(JsonLines().format(record))["request_id"] == "mine"
    assert "ZeroDivisionError: nobody thought of that" in JsonLines().format(record)


def test_nothing_was_logged_as_an_error(server: Server) -> None:
    log = server.log.read_text()

    assert "Traceback" not in log and "ERROR" not in log, log
