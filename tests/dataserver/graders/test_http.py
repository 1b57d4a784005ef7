"""An external grader: results are matched to completions by id, and a service's faults stay contained."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataserver.graders.services import free_port, serving_app
from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.http import HttpGrader
from posttrain.dataserver.graders.remote import Failure, Outcome, new_client
from posttrain.dataserver.graders.text.completions import GradeInput

CANARY = "canary-6f1d9b"

Results = list[dict[str, Any]]


def by_length(items: Results) -> Results:
    """Score each completion a tenth of its length."""
    return [{"item_id": item["item_id"], "score": len(item["completion"]) / 10} for item in items]


class Service:
    """A grading service that can be told how to misbehave."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most_under_way = 0
        self.lock = threading.Lock()
        self.answer: Callable[[Results], Response] = lambda items: results(by_length(items))
        self.seconds = 0.0
        self.app = FastAPI()
        self.app.post("/{path:path}")(self.grade)

    async def grade(self, request: Request) -> Response:
        with self.lock:
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        await asyncio.sleep(self.seconds)
        with self.lock:
            self.under_way -= 1
        return self.answer(body["items"])


def results(found: Any) -> Response:
    return Response(json.dumps({"results": found}), media_type="application/json")


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Service, str]]:
    service = Service()
    with serving_app(service.app) as url:
        yield service, url


@pytest.fixture
def service(running: tuple[Service, str]) -> Service:
    service = running[0]
    while service.under_way:  # calls that an earlier test abandoned
        time.sleep(0.005)
    service.__dict__.update(requests=[], headers=[], most_under_way=0, seconds=0.0)
    service.answer = lambda items: results(by_length(items))
    return service


@pytest.fixture
def url(running: tuple[Service, str]) -> str:
    return running[1]


def grade(url: str, *completions: str, **params: Any) -> list[Outcome]:
    return grade_items([GradeInput(completion, completion) for completion in completions], url, **params)


def grade_items(items: list[GradeInput], url: str, **params: Any) -> list[Outcome]:
    async def ask() -> list[Outcome]:
        async with new_client() as client:
            return await HttpGrader(url=url, **params).score_all(items, client)

    return asyncio.run(ask())


def scores(outcomes: list[Outcome]) -> list[float | str]:
    return [outcome.value if isinstance(outcome, Score) else outcome.detail for outcome in outcomes]


def test_a_service_gives_the_scores(service: Service, url: str) -> None:
    assert scores(grade(url, "a", "abc")) == [0.1, 0.3]


def test_the_service_sees_all_of_a_completion(service: Service, url: str) -> None:
    item = GradeInput(
        "<think>x</think>y\ud800", "y", "x", gold=[1], record={"a": {"b": 2}}, prompt="P", completion_tokens=5
    )

    grade_items([item], url)

    assert service.requests == [
        {
            "protocol": 1,
            "items": [
                {
                    "item_id": "0",
                    "prompt": "P",
                    "completion": "<think>x</think>y\ud800",
                    "answer": "y",
                    "reasoning": "x",
                    "gold": [1],
                    "record": {"a": {"b": 2}},
                    "completion_tokens": 5,
                }
            ],
        }
    ]


def test_results_in_another_order_find_their_completions(service: Service, url: str) -> None:
    service.answer = lambda items: results(by_length(items)[::-1])

    assert scores(grade(url, "a", "ab", "abc")) == [0.1, 0.2, 0.3]


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(lengths=st.lists(st.integers(0, 10), max_size=12), batch=st.integers(1, 5), order=st.randoms())
def test_any_batches_in_any_order_give_the_same_scores(
    service: Service, url: str, lengths: list[int], batch: int, order: Any
) -> None:
    def shuffled(items: Results) -> Response:
        found = by_length(items)
        order.shuffle(found)
        return results(found)

    service.answer = shuffled

    assert scores(grade(url, *("x" * length for length in lengths), batch_size=batch)) == [n / 10 for n in lengths]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda found: found[:1], "the service returned no result for it"),
        (lambda found: [*found, {"item_id": "1", "score": 1.0}], "the service returned more than one result for it"),
        (lambda found: [found[0], {"item_id": "7", "score": 1.0}], "the service returned no result for it"),
        (lambda found: [found[0], {"item_id": 1, "score": 1.0}], "the service returned no result for it"),
        (lambda found: [found[0], {"score": 1.0}, "1", None], "the service returned no result for it"),
        (lambda found: [found[0], {"item_id": "1", "score": math.nan}], "nan"),
        (lambda found: [found[0], {"item_id": "1", "score": math.inf}], "inf"),
        (lambda found: [found[0], {"item_id": "1", "score": 1.5}], "1.5"),
        (lambda found: [found[0], {"item_id": "1", "score": -0.1}], "-0.1"),
        (lambda found: [found[0], {"item_id": "1", "score": True}], "True"),
        (lambda found: [found[0], {"item_id": "1", "score": "1"}], "'1'"),
        (lambda found: [found[0], {"item_id": "1"}], "None"),
        (lambda found: [found[0], {"item_id": "1", "score": 1, "status": "error"}], "does not match the score"),
        (lambda found: [found[0], {"item_id": "1", "status": "later"}], "unknown"),
    ],
)
def test_a_wrong_result_costs_its_own_completion_the_score(
    service: Service, url: str, change: Callable[[Results], Any], expected: str
) -> None:
    service.answer = lambda items: results(change(by_length(items)))

    first, second = grade(url, "a", "ab")

    assert first == Score(0.1)
    assert isinstance(second, Failure)
    assert second.status == "error"
    assert expected in second.detail


def test_a_service_can_abstain_and_say_why(service: Service, url: str) -> None:
    found = [{"item_id": "0", "status": "abstain", "detail": "no idea"}, {"item_id": "1", "score": 1, "detail": "good"}]
    service.answer = lambda items: results(found)

    assert grade(url, "a", "b") == [Failure("abstain", "no idea"), Score(1.0, "good")]


def test_a_record_that_is_no_json_costs_its_own_completion_the_score(service: Service, url: str) -> None:
    items = [
        GradeInput("a", "a", record={"x": math.nan}),
        GradeInput("b", "b", record={"x": {1, 2}}),
        GradeInput("c", "c"),
    ]

    assert scores(grade_items(items, url)) == ["its record cannot be written as JSON"] * 2 + [0.1]


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 302])
def test_a_refused_call_is_not_repeated(service: Service, url: str, status: int) -> None:
    service.answer = lambda items: Response("secret words", status, headers={"Location": "/elsewhere"})

    outcomes = grade(f"{url}/grade?key={CANARY}", "a", "b")

    assert outcomes == [Failure("error", f"{url}/grade answered {status}")] * 2
    assert len(service.requests) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_service_is_asked_again(service: Service, url: str, status: int) -> None:
    service.answer = lambda items: results(by_length(items)) if len(service.requests) > 2 else Response("", status)

    assert scores(grade(url, "a", retries=2)) == [0.1]
    assert len(service.requests) == 3


def test_a_service_that_stays_busy_is_given_up(service: Service, url: str) -> None:
    service.answer = lambda items: Response("", 503)

    assert grade(url, "a", retries=1) == [Failure("error", f"{url} answered 503")]
    assert len(service.requests) == 2


def test_the_wait_that_a_service_asks_for_is_kept(service: Service, url: str) -> None:
    busy = Response("", 429, headers={"Retry-After": "1"})
    service.answer = lambda items: results(by_length(items)) if len(service.requests) > 1 else busy
    begin = time.monotonic()

    assert scores(grade(url, "a")) == [0.1]
    assert 1.0 <= time.monotonic() - begin < 5.0


def test_a_service_that_is_busy_for_an_hour_is_given_up_at_once(service: Service, url: str) -> None:
    service.answer = lambda items: Response("", 429, headers={"Retry-After": "3600"})
    begin = time.monotonic()

    assert grade(url, "a") == [Failure("error", f"{url} answered 429")]
    assert time.monotonic() - begin < 5.0


def test_a_slow_service_is_given_up(service: Service, url: str) -> None:
    service.seconds = 0.3

    assert grade(url, "a", timeout_seconds=0.1, retries=0) == [Failure("error", f"{url} did not answer within 0.1 s")]


@pytest.mark.parametrize("body", ['{"results": [{"item_id": "0", "sc', "", "[]", '{"results": 5}', "[" * 100_000])
def test_an_answer_that_is_cut_or_of_another_form_is_an_error(service: Service, url: str, body: str) -> None:
    service.answer = lambda items: Response(body)

    (outcome,) = grade(url, "a")

    assert isinstance(outcome, Failure)
    assert outcome.detail in (
        f"{url} sent a response that is not JSON",
        f"{url} sent a response without a list of results",
    )


def test_a_connection_that_breaks_off_is_an_error(service: Service, url: str) -> None:
    service.answer = lambda items: Response("{}", headers={"Content-Length": "100"})

    assert grade(url, "a", retries=0) == [Failure("error", f"cannot reach {url} (RemoteProtocolError)")]


def test_nobody_listening_is_an_error() -> None:
    url = f"http://127.0.0.1:{free_port()}"

    assert grade(url, "a", "b", retries=1) == [Failure("error", f"cannot reach {url} (ConnectError)")] * 2


def test_one_bad_call_of_several_costs_its_own_completions_the_score(service: Service, url: str) -> None:
    service.answer = lambda items: Response("", 500) if items[0]["completion"] == "bad" else results(by_length(items))

    assert scores(grade(url, "a", "bad", "abc", batch_size=1)) == [0.1, f"{url} answered 500", 0.3]


def test_no_more_calls_than_allowed_are_under_way(service: Service, url: str) -> None:
    service.seconds = 0.02

    assert scores(grade(url, *["a"] * 12, batch_size=1, max_concurrency=3)) == [0.1] * 12
    assert service.most_under_way == 3


def test_a_service_that_keeps_failing_is_left_alone_for_a_while(service: Service, url: str) -> None:
    grader = HttpGrader(url=url, retries=0, breaker_failures=2, breaker_seconds=0.3, batch_size=1, max_concurrency=1)
    service.answer = lambda items: Response("", 500)
    items = [GradeInput("a", "a")] * 5

    async def story() -> None:
        async with new_client() as client:
            outcomes = await grader.score_all(items, client)
            assert (
                scores(outcomes)
                == [f"{url} answered 500"] * 2 + [f"{url} is not being called, after 2 failed calls in a row"] * 3
            )
            assert len(service.requests) == 2

            await asyncio.sleep(0.35)
            await grader.score_all(items, client)
            assert len(service.requests) == 3, "one call finds out whether it is back"

            await asyncio.sleep(0.35)
            service.answer = lambda items: results(by_length(items))
            assert scores(await grader.score_all(items, client)) == [0.1] * 5

    asyncio.run(story())


def test_a_token_goes_to_the_service_and_nowhere_else(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("GRADER_TOKEN", CANARY)
    service.answer = lambda items: results(
        [{"item_id": "0", "score": 1, "detail": f"you sent Bearer {CANARY}"}, {"item_id": "1", "score": CANARY}]
    )
    caplog.set_level("DEBUG")

    outcomes = grade(url, "a", "b", token_env="GRADER_TOKEN")

    assert service.headers[0]["authorization"] == f"Bearer {CANARY}"
    assert outcomes[0] == Score(1.0, "you sent Bearer ***")
    assert CANARY not in repr(outcomes) + caplog.text + repr(HttpGrader(url=url, token_env="GRADER_TOKEN"))


@pytest.mark.parametrize("value", [None, "", f"{CANARY}\n", f"{CANARY}é"])
def test_a_token_that_cannot_be_sent_is_an_error_that_does_not_show_it(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("GRADER_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("GRADER_TOKEN", value)

    (outcome,) = grade(url, "a", token_env="GRADER_TOKEN")

    assert isinstance(outcome, Failure)
    assert "GRADER_TOKEN" in outcome.detail
    assert CANARY not in outcome.detail
    assert service.requests == []


def test_a_proxy_of_the_environment_is_not_used_for_this_machine(
    service: Service, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    assert scores(grade(url, "a")) == [0.1]
    assert scores(grade(url.replace("127.0.0.1", "localhost"), "a")) == [0.1]


@pytest.mark.parametrize(
    "params",
    [
        {"url": "ftp://host/x"},
        {"url": "file:///etc/passwd"},
        {"url": "host/x"},
        {"url": "http://"},
        {"url": "http://host:99999/"},
        {"url": f"https://user:{CANARY}@host/"},
        {"url": "http://host/", "token_env": CANARY},
        {"url": "http://host/", "token_env": "sk-123"},
        {"url": "http://host/", "timeout_seconds": 0},
        {"url": "http://host/", "batch_size": 0},
    ],
)
def test_a_config_that_cannot_work_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as refused:
        HttpGrader(**params)

    if CANARY in repr(params):
        words = refused.value.errors(include_input=False)[0]["msg"]  # type: ignore[attr-defined]
        assert CANARY not in words
