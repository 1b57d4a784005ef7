"""Large bodies, and small ones that expand in memory, cost no more than they must and delay no other request."""

import gzip
import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from dataserver.serving import Server, a_config, gold_of, good, serving

MIB = 2**20
_numbers = count()
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"workers": 2, "items": 1000}
    with serving(a_config(tmp_path_factory.mktemp("large") / "config", limits=limits)) as server:
        yield server


def most_memory(server: Server) -> int:
    """Peak resident memory of the server process, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


def post(server: Server, content: bytes, path: str = "/grade") -> httpx.Response:
    return server.client.post(path, content=gzip.compress(content), headers={**JSON, "Content-Encoding": "gzip"})


def grade_body(items: str) -> bytes:
    return f'{{"iteration": 0, "request_id": "{next(_numbers)}", "items": [{items}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        grade_body(",".join(["1"] * 8_000_000)),
        grade_body(",".join(["[]"] * 8_000_000)),
        grade_body(",".join(['{"a":1}'] * 2_000_000)),
        grade_body(",".join(['"ab"'] * 4_000_000)),
        b"{" + b",".join(b'"%d":1' % number for number in range(1_000_000)) + b"}",
    ],
    ids=["numbers", "lists", "objects", "texts", "keys"],
)
@pytest.mark.parametrize("path", ["/grade", "/sample"])
def test_values_are_counted_before_they_are_made(server: Server, path: str, body: bytes):
    before = most_memory(server)

    response = post(server, body, path)

    assert response.status_code == 422
    assert "values" in response.json()["message"]
    # A few copies of the body; parsed, it would take gigabytes.
    assert most_memory(server) - before < 6 * len(body)


def test_of_many_wrong_items_the_first_is_told(server: Server):
    # Just below the size at which values are counted. A message for each item would take a gigabyte.
    before = most_memory(server)
    problem = post(server, grade_body(",".join(["1"] * 1_000_000))).json()

    assert problem["fields"] == ["items.0"]
    assert most_memory(server) - before < 100 * MIB


def test_of_many_unknown_keys_none_is_looked_at(server: Server):
    for path in ("/sample", "/grade"):
        problem = post(server, json.dumps({f"key {number}": 1 for number in range(5000)}).encode(), path).json()

        assert "5000 keys" in problem["message"]
        assert problem["fields"] == []


def test_more_items_than_may_be_are_told_as_such(server: Server):
    sample_id = server.sample(0, 1).samples[0].sample_id
    items = [{"item_id": str(number), "sample_id": sample_id, "completion": "x" * 500} for number in range(1001)]

    problem = post(server, grade_body(json.dumps(items)[1:-1])).json()

    assert "the request has 1001 items; at most 1000 are allowed (limits.items)" in problem["message"]


@pytest.mark.parametrize("body", [b'{"iteration": 0, "batch_size": 1, "iteration": 1}', b'{"a": {"b": 1, "b": 1}}'])
def test_a_key_that_stands_twice_is_refused(server: Server, body: bytes):
    problem = post(server, body, "/sample").json()

    assert "duplicate key" in problem["message"] and problem["code"] == "bad_request"


def test_texts_of_a_large_body_are_no_values(server: Server):
    sample = server.sample(0, 1).samples[0]
    # About 15 million commas, brackets and quotation marks in 21 items, half of them after a backslash.
    text = '[{,"\\' * 500_000 + f" {gold_of(sample)}"
    items: list[dict[str, Any]] = [{"item_id": "a", "sample_id": sample.sample_id, "completion": text[-900_000:]}]
    items += [{**items[0], "item_id": str(number)} for number in range(20)]

    results = good(post(server, grade_body(json.dumps(items)[1:-1])))["results"]

    assert [result["reward"] for result in results] == [1.0] * 21


@pytest.mark.parametrize("end", [b'"', b'"\\', b'"\\"', b'"' + b'\\"' * 3_000_000, b"\\" * 3_000_000, b'"' * 3_000_001])
def test_quotation_marks_without_an_end_are_refused(server: Server, end: bytes):
    response = post(server, b" " * MIB + b'{"iteration": ' + end)

    assert response.status_code == 422


def test_others_are_answered_while_a_large_body_is_looked_at(server: Server):
    sample = server.sample(0, 1).samples[0]
    items = [
        {"item_id": str(number), "sample_id": sample.sample_id, "completion": f"{number} " + "so é " * 9_000}
        for number in range(1000)
    ]
    body = grade_body(json.dumps(items, ensure_ascii=False)[1:-1])
    assert 45 * MIB < len(body) < 64 * MIB
    asked, is_over = [], threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            while not is_over.is_set():
                asked.append(client.get("/healthz").elapsed.total_seconds())

    asking = threading.Thread(target=ask)
    asking.start()
    results = good(server.client.post("/grade", content=body, headers=JSON, timeout=120))["results"]
    is_over.set()
    asking.join()

    assert {result["status"] for result in results} <= {"ok", "abstain"}
    # Generous: parsing and validating such a body takes about one CPU second.
    assert max(asked) < 0.6, sorted(asked)[-5:]
