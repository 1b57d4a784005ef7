"""The trainer's client: whatever the network or server does, it returns the right rewards or one clear error."""

import gzip
import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataserver.chaos import FAULTS, chaos_before
from dataserver.serving import Server, a_config, serving, until
from dataserver.trainer import journal
from posttrain.dataserver.schemas import GradeItem, GradeResult, Limits
from posttrain.errors import ConfigError, ServerError
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.protocol import GradeCall, Label, bounded_run_id, encoded, grade_calls
from posttrain.rl.client.transport import OutageError
from rl.rl_serving import Fault, changed, failing, items_for, spoiling

KILOBYTE = 1024
TOKEN = "a-long-token-with-ümlauts"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(a_config(tmp_path_factory.mktemp("client") / "config")) as server:
        yield server


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with another config."""
    with serving(a_config(tmp_path_factory.mktemp("other") / "config", seed=1)) as server:
        yield server


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with small limits that requires a token."""
    limits = {
        "workers": 2,
        "items": 5,
        "batch_size": 3,
        "body_mb": 8 / 1024,
        "queue_items": 4,
        "grader_seconds": 0.5,
        "grade_seconds": 0.6,
    }
    config = a_config(
        tmp_path_factory.mktemp("strict") / "config", limits=limits, listen={"token_env": "DATASERVER_TOKEN"}
    )
    with serving(config, token=TOKEN, environment={"DATASERVER_TOKEN": TOKEN}) as server:
        yield server


def a_client(url: str, **options: Any) -> DataserverClient:
    return DataserverClient(url, **{"run_id": "a run", "retry_seconds": 30.0, "token": TOKEN, **options})


def outcomes(results: list[GradeResult]) -> list[tuple[str, str, float | None]]:
    return [(result.item_id, result.status, result.reward) for result in results]


def test_prompts_and_rewards_are_those_of_the_server(server: Server) -> None:
    with a_client(server.url) as client:
        samples = client.sample(1, 2, 5)
        results = client.grade(1, "train-1-g0", items_for(samples, "gold", "wrong"))

        assert samples == server.sample(1, 5, offset=2).samples
        assert outcomes(results) == [
            (f"{slot}-{number}", "ok", reward) for slot in range(2, 7) for number, reward in enumerate((1.0, 0.0))
        ]
        assert client.sample(0, 0, 3, "validation") == server.sample(0, 3, split="validation").samples
        assert client.grade(1, "nothing", []) == []
        assert client.retries == 0


def test_what_a_server_with_small_limits_answers_is_put_together(server: Server, strict_server: Server) -> None:
    with a_client(server.url) as client, a_client(strict_server.url) as strict:
        samples = strict.sample(0, 0, 8)
        # 24 items of 3 kB: five exceed the body limit of 8 KiB, two do not.
        items = [
            item.model_copy(update={"completion": item.completion + " ü" * KILOBYTE})
            for item in items_for(samples, "gold", "wrong", "gold")
        ]
        expected = client.grade(0, "chunks", items)
        requests = strict_server.counter("requests_total")

        assert samples == client.sample(0, 0, 8)
        assert outcomes(strict.grade(0, "chunks", items)) == outcomes(expected)
        assert outcomes(strict.grade(0, "few", items_for(samples, "gold"))) == [
            (f"{slot}-0", "ok", 1.0) for slot in range(8)
        ]
        # 24 = 12 × 2 and 8 = 5 + 3; reading the counter is itself a request.
        assert strict_server.counter("requests_total") - requests - 1 == 12 + 2
        # With text after the gold word, one of the two graders of `words` gives nothing.
        assert {result.reward for result in expected} == {0.0, 0.25, 1.0}


def test_a_completion_that_fits_into_no_request_costs_its_own_reward(strict_server: Server) -> None:
    with a_client(strict_server.url) as client:
        items = items_for(client.sample(0, 0, 1), "gold", "ü" * 5 * KILOBYTE, "gold")

        results = client.grade(0, "too large", items)

    assert outcomes(results) == [("0-0", "ok", 1.0), ("0-1", "error", None), ("0-2", "ok", 1.0)]
    assert results[1].reason == "the completion exceeds the dataserver's request size limit (limits.body_mb)"


def test_completions_that_need_more_time_than_a_request_has_are_asked_for_again(strict_server: Server) -> None:
    with a_client(strict_server.url) as client:
        sample = client.sample(0, 0, 1)
        items = items_for(sample, *[f"sleep 0.45 late {number}" for number in range(4)])

        assert outcomes(client.grade(0, "late", items)) == [(f"0-{number}", "ok", 0.0) for number in range(4)]
        assert [result.status for result in strict_server.grade([dict(items[0])], "not late").results] == ["ok"]


def test_a_full_queue_is_waited_for(strict_server: Server) -> None:
    with a_client(strict_server.url) as client, ThreadPoolExecutor() as threads:
        sample = client.sample(0, 0, 1)
        slow = items_for(sample, *[f"sleep 0.4 full {number}" for number in range(4)])
        filling = threads.submit(strict_server.grade, [dict(item) for item in slow], "filling")
        until(lambda: strict_server.counter("waiting_completions") >= 3)
        begin = time.monotonic()

        results = client.grade(0, "patient", items_for(sample, "gold", "wrong"))

        assert outcomes(results) == [("0-0", "ok", 1.0), ("0-1", "ok", 0.0)]
        assert client.retries >= 1
        assert time.monotonic() - begin >= 1.0  # the server's Retry-After
        filling.result()


def test_a_bad_network_changes_no_reward_and_keeps_no_row_twice(other_server: Server) -> None:
    def run(client: DataserverClient) -> list[Any]:
        seen = []
        for iteration in range(4):
            samples = client.sample(iteration, 0, 8)
            seen.append(outcomes(client.grade(iteration, f"train-{iteration}", items_for(samples, "gold", "no", "no"))))
        return seen

    with chaos_before(other_server.port, seed=3, late_seconds=1.2) as (url, proxy):
        with a_client(url, request_seconds=1.0) as disturbed, a_client(other_server.url) as undisturbed:
            seen = run(disturbed)
            assert seen == run(undisturbed)
            assert disturbed.retries >= len(FAULTS)
        assert set(proxy.done) == set(FAULTS)

    assert [reward for step in seen for _, _, reward in step] == [1.0, 0.0, 0.0] * 32
    until(lambda: other_server.counter("journal_queued") == 0)
    assert len(journal(other_server.log.parent)) == 4 * 24


def test_a_server_that_comes_back_with_other_data_is_not_believed(server: Server, other_server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        before = client.meta().config_id
        items = items_for(client.sample(0, 0, 2), "gold")
        proxy.url = other_server.url
        after = other_server.sample(0).config_id
        asks: list[Callable[[], object]] = [
            lambda: client.sample(1, 0, 2),
            lambda: client.grade(0, "g", items),
            client.meta,
            lambda: client.connect(5),
        ]
        for ask in asks:
            with pytest.raises(ServerError, match="no longer serves what this run started with") as told:
                ask()
            assert before in str(told.value)
            assert after in str(told.value)
        assert client.retries == 0
        assert before != after


def test_what_the_server_refuses_is_not_repeated(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        client.meta()

        with pytest.raises(ServerError, match=r"answered /sample with 422: .*prompts_per_iteration"):
            client.sample(0, 4, 8)
        with pytest.raises(ServerError, match=r"answered /grade with 422: .*appears more than once in the request"):
            client.grade(0, "twice", items_for(client.sample(0, 0, 1), "a") * 2)
        with pytest.raises(ServerError, match=r"\(fields: iteration\)"):
            client.grade(-1, "never", items_for(client.sample(0, 0, 1), "a"))

        assert [path for path, _, _ in proxy.requests] == ["/meta", "/sample", "/sample", "/grade", "/sample", "/grade"]
        assert client.retries == 0


def test_a_wrong_token_says_what_to_set(strict_server: Server) -> None:
    with a_client(strict_server.url, token=f" {TOKEN}\n") as client:
        assert client.connect(5).prompts_per_iteration == 8
    for token, state in ((None, "requires a token"), ("another", "rejects the token")):
        with a_client(strict_server.url, token=token) as client:
            with pytest.raises(ConfigError, match=rf"{state}: .*listen\.token_env.*dataserver\.token_env"):
                client.connect(5)
            # During a run, the server must have changed, so this is no ConfigError.
            with pytest.raises(ServerError, match=state):
                client.sample(0, 0, 1)
            assert client.retries == 0


@pytest.mark.parametrize(
    ("url", "token", "message"),
    [
        ("localhost:9000", None, "'localhost:9000' is not the address of a server; write http://host:port"),
        ("ftp://a", None, "'ftp://a' is not the address of a server"),
        ("http://", None, "is not the address of a server"),
        ("http://a:99999999", None, "is not the address of a server"),
        ("http://me:secret@a", None, "contains a user name or password"),
        ("http://a", " ", "empty or contains line breaks"),
        ("http://a", "b\nc", "empty or contains line breaks"),
    ],
)
def test_an_address_or_token_that_cannot_be_used_is_told_before_anything_is_sent(
    url: str, token: str | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        a_client(url, token=token)
    assert "secret" not in str(told.value)


def test_an_outage_that_is_too_long_says_what_was_tried(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posttrain.rl.client.transport._SECONDS_BETWEEN_LINES", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    begin = time.monotonic()

    with a_client(f"http://127.0.0.1:{port}", retry_seconds=0.7) as client, pytest.raises(OutageError) as told:
        client.sample(0, 0, 1)

    assert 0.7 <= time.monotonic() - begin < 3
    assert client.retries >= 2
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("posttrain.rl")]
    place = f"the dataserver at http://127.0.0.1:{port} cannot be reached ([Errno 111] Connection refused)"
    assert lines[0] == f"{place}; retrying for up to 0.7 s"
    assert len(lines) == client.retries
    assert all(re.fullmatch(rf"{re.escape(place)}; this has lasted for \d s", line) for line in lines[1:])
    tries = client.retries + 1
    assert str(told.value) == (
        f"no valid answer after 1 s and {tries} tries; last error: {place}. Check whether the server is running and "
        "what its log says; --resume continues from the last checkpoint"
    )


def test_a_server_that_will_not_come_back_is_not_waited_for() -> None:
    def check() -> None:
        raise ServerError("it is gone for good")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with a_client(url, check=check) as client, pytest.raises(ServerError, match="gone for good"):
        client.meta()


def test_a_server_that_takes_a_request_and_says_nothing_is_left_in_time() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        a_client(f"http://127.0.0.1:{listener.getsockname()[1]}", retry_seconds=0.5, request_seconds=0.2) as client,
        pytest.raises(OutageError, match=r"did not answer /meta within 0\.2 s"),
    ):
        client.meta()


def test_an_answer_that_never_ends_is_left_in_time(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url, retry_seconds=0.5, request_seconds=0.4) as client:
        samples = client.sample(0, 0, 1)
        # Each byte arrives well within a try's timeout, but the whole answer would take minutes.
        proxy.always = lambda reply: reply._replace(seconds_per_byte=0.1)
        begin = time.monotonic()

        with pytest.raises(OutageError, match=r"did not answer /grade within 0\.4 s"):
            client.grade(0, "slow", items_for(samples, "gold"))

        assert time.monotonic() - begin < 3


def first(change: Any) -> Fault:
    """A fault that changes the first result."""
    return changed(lambda told: told["results"][0].update(change))


GRADE_FAULTS: dict[str, tuple[Fault, str]] = {
    "another id": (first({"item_id": "7"}), "no result for '0-0'"),
    "one twice": (first({"item_id": "0-1"}), "more than one result for '0-1'"),
    "one missing": (changed(lambda told: told["results"].pop() and None), "no result for '1-1'"),
    "one too many": (
        changed(lambda told: told["results"].append({**told["results"][0], "item_id": "9"})),
        "results for '9', which were not requested",
    ),
    "all missing": (changed(lambda told: told["results"].clear()), "no result for '0-0', '0-1', '1-0' and 1 more"),
    "disorder": (changed(lambda told: told["results"].reverse()), "its results out of order"),
    "another request": (changed(lambda told: told.update(request_id="x")), "for request 'x' instead of"),
    "a reward without ok": (first({"status": "abstain"}), "reward 1.0 and status abstain, which do not match"),
    "ok without a reward": (first({"reward": None}), "reward None and status ok, which do not match"),
    "a reward above 1": (first({"reward": 1.5}), "reward 1.5 and status ok, which do not match"),
    "a reward below 0": (first({"reward": -0.1}), "reward -0.1 and status ok, which do not match"),
    "no number": (first({"reward": float("nan")}), r"results\.0\.reward: Input should be a finite number"),
    "infinity": (first({"reward": float("inf")}), r"results\.0\.reward: Input should be a finite number"),
    "true": (first({"reward": True}), r"results\.0\.reward: Input should be a valid number"),
    "text": (first({"reward": "1.0"}), r"results\.0\.reward: Input should be a valid number"),
    "another status": (first({"status": "good"}), r"results\.0\.status: Input should be"),
    "no results": (changed(lambda told: told.pop("results") and None), "results: Field required"),
    "a list": (changed(lambda told: [told]), "Input should be an object"),
    "cut": (lambda reply: reply._replace(content=reply.content[:-20]), "Invalid JSON"),
    "nothing": (lambda reply: reply._replace(content=b""), "Invalid JSON"),
    "HTML": (lambda reply: reply._replace(content=b"<html>Please log in"), "Invalid JSON"),
    "no content": (failing(204), "answered /grade with 204"),
    "500": (failing(500), "answered /grade with 500: Internal Server Error"),
    "504": (failing(504), "answered /grade with 504"),
    "408": (failing(408), "answered /grade with 408"),
}


@pytest.mark.parametrize("name", GRADE_FAULTS)
def test_a_wrong_answer_is_never_a_reward(server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    fault, message = GRADE_FAULTS[name]
    with (
        spoiling(server.url) as (url, proxy),
        a_client(url) as client,
        a_client(url, retry_seconds=0) as impatient,
    ):
        items = items_for(impatient.sample(0, 0, 2), "gold", "wrong")
        proxy.always = fault
        with pytest.raises(OutageError, match=message):
            impatient.grade(0, "at once", items)

        client.meta()
        proxy.requests.clear()
        proxy.faults, proxy.always = [fault, fault], None
        good = client.grade(0, "twice", items)

    assert outcomes(good) == [(f"{slot}-{number}", "ok", 1.0 - number) for slot in range(2) for number in range(2)]
    assert client.retries == 2
    told = [record.getMessage() for record in caplog.records if record.name.startswith("posttrain.rl")]
    assert [line.partition("; ")[2] for line in told[:1]] == ["retrying for up to 30 s"]
    assert [line.partition(", after ")[0] for line in told[1:]] == [f"the dataserver at {url} answers again"]
    # Retries must be identical.
    assert proxy.requests == [proxy.requests[0]] * 3


SAMPLE_FAULTS: dict[str, tuple[Fault, str]] = {
    "one missing": (changed(lambda told: told["samples"].pop() and None), "slots 2, 3 instead of 2, 3, 4"),
    "none": (changed(lambda told: told["samples"].clear()), "slots none instead of 2, 3, 4"),
    "one twice": (changed(lambda told: told["samples"].append(told["samples"][0])), "slots 2, 3, 4 and 1 more"),
    "disorder": (changed(lambda told: told["samples"].reverse()), "slots 4, 3, 2 instead of"),
    "another iteration": (changed(lambda told: told.update(iteration=9)), "for iteration 9 instead of 1"),
    "no prompt": (changed(lambda told: told["samples"][0].pop("messages") and None), r"samples\.0\.messages: Field"),
}


@pytest.mark.parametrize("name", SAMPLE_FAULTS)
def test_wrong_prompts_are_never_trained_on(server: Server, name: str) -> None:
    fault, message = SAMPLE_FAULTS[name]
    with (
        spoiling(server.url) as (url, proxy),
        a_client(url) as client,
        a_client(url, retry_seconds=0) as impatient,
    ):
        client.meta()
        impatient.meta()
        proxy.faults = [fault, fault]
        with pytest.raises(OutageError, match=message):
            impatient.sample(1, 2, 3)
        assert client.sample(1, 2, 3) == server.sample(1, 3, offset=2).samples
        assert client.retries == 1


def test_answers_from_another_config_are_an_error_at_once(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        samples = client.sample(0, 0, 1)
        proxy.always = changed(lambda told: told.update(config_id="another"))

        for ask in (lambda: client.sample(0, 0, 1), lambda: client.grade(0, "g", items_for(samples, "gold"))):
            with pytest.raises(ServerError, match="its config_id is another, but the run has "):
                ask()
        assert client.retries == 0


def test_retry_after_is_obeyed_but_not_beyond_the_patience(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url, retry_seconds=1.5) as client:
        client.meta()
        proxy.faults = [failing(429, Retry_After="1")]
        begin = time.monotonic()
        client.sample(0, 0, 1)
        assert 1.0 <= time.monotonic() - begin < 1.5

        proxy.faults = [failing(503, Retry_After="3600")]
        begin = time.monotonic()
        client.sample(0, 0, 1)
        # The last try is made when retry_seconds are over.
        assert 1.5 <= time.monotonic() - begin < 3

        proxy.faults = [failing(503, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"), failing(503, Retry_After="soon")]
        client.sample(0, 0, 1)


def test_large_requests_are_sent_as_gzip(server: Server) -> None:
    with spoiling(server.url) as (url, proxy), a_client(url) as client:
        items = items_for(client.sample(0, 0, 8), "gold", "x" * 20_000)

        results = client.grade(0, "large", items)

    assert [result.reward for result in results] == [1.0, 0.0] * 8
    _, headers, body = proxy.requests[-1]
    assert headers["Content-Encoding"] == "gzip"
    assert len(body) < 10_000 < 160_000 < len(gzip.decompress(body))
    assert "Content-Encoding" not in proxy.requests[-2][1]


def test_half_a_surrogate_pair_is_graded_as_the_server_would_read_it(server: Server) -> None:
    with a_client(server.url) as client:
        sample = client.sample(0, 0, 1)
        items = items_for(sample, "\ud83d", "\ude00 \ud83d", "日本 \0 😀", "\ufeff")

        results = client.grade(0, "half", items)
        plain = [{"item_id": item.item_id, "sample_id": item.sample_id} for item in items]
        said = ["\ufffd", "\ufffd \ufffd", "日本 \0 😀", "\ufeff"]
        same = server.grade(
            [{**item, "completion": text} for item, text in zip(plain, said, strict=True)], "what it reads"
        )

    assert outcomes(results) == outcomes(same.results)
    calls = [line for line in (server.log.parent / "calls").read_text().splitlines() if line == repr("\ufffd \ufffd")]
    assert len(calls) == 1


def test_a_proxy_of_the_environment_is_not_asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    with a_client(server.url, retry_seconds=0) as client:
        assert client.meta().prompts_per_iteration == 8


def test_runs_and_ranks_may_use_the_same_labels(server: Server) -> None:
    def rewards(run_id: str, rank: int) -> list[float | None]:
        with a_client(server.url, run_id=run_id, rank=rank) as client:
            items = items_for(client.sample(0, 0, 1), "gold", f"{run_id} {rank}")
            return [result.reward for result in client.grade(0, "train-0", items)]

    with ThreadPoolExecutor() as threads:
        given = list(threads.map(rewards, ("a", "a", "b", "x" * 500), (0, 1, 0, 0)))

    assert given == [[1.0, 0.0]] * 4


def test_a_resumed_run_may_answer_otherwise_than_the_first_time(server: Server) -> None:
    for said, reward in (("gold", 1.0), ("no more", 0.0), ("gold", 1.0)):
        with a_client(server.url, run_id="resumed") as client:
            items = items_for(client.sample(0, 0, 1), said)
            assert outcomes(client.grade(0, "train-0-g0", items)) == [("0-0", "ok", reward)]


items_strategy = st.lists(
    st.text(st.characters(codec=None), max_size=300).map(
        lambda text: GradeItem(item_id="i", sample_id="s", completion=text)
    ),
    max_size=12,
)


@settings(deadline=None)
@given(
    name=st.sampled_from(["train-3", "ü" * 178, "日" * 300, "\0" * 300]),
    items=items_strategy,
    max_items=st.integers(1, 5),
    max_body_bytes=st.integers(700, 3000),
)
def test_requests_keep_the_limits_and_every_item_in_its_place(
    name: str, items: list[GradeItem], max_items: int, max_body_bytes: int
) -> None:
    label = Label(3, name, "run", 1, "c" * 64)
    limits = Limits(
        max_batch_size=1,
        max_items=max_items,
        max_body_bytes=max_body_bytes,
        max_completion_chars=1,
        grade_timeout_seconds=1.0,
    )

    calls = list(grade_calls(label, items, limits))

    kept: list[GradeItem] = []
    for call in calls:
        if isinstance(call, GradeItem):
            kept.append(call)
            assert len(label.opening("")) + len(encoded(name)) + len(encoded(call.completion)) > max_body_bytes - 100
            continue
        kept += call.items
        assert len(call.body) <= max_body_bytes
        assert 1 <= len(call.items) <= max_items
        told = json.loads(call.body)
        assert told["request_id"] == call.request_id
        assert [item["completion"] for item in told["items"]] == [
            item.completion.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for item in call.items
        ]
    assert [id(item) for item in kept] == [id(item) for item in items]
    requests = [call.request_id for call in calls if isinstance(call, GradeCall)]
    assert len(set(requests)) == len(requests)
    assert [call.request_id for call in grade_calls(label, items, limits) if isinstance(call, GradeCall)] == requests


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=300), st.text(max_size=300), st.integers(0, 9), st.integers(0, 9), st.binary(max_size=3)
        ),
        unique=True,
    )
)
def test_request_ids_are_short_and_no_two_are_equal(calls: list[tuple[str, str, int, int, bytes]]) -> None:
    ids = [
        Label(0, name, run_id, rank, "c").request_id(chunk, [content]) for run_id, name, rank, chunk, content in calls
    ]

    assert len(set(ids)) == len(calls)
    assert all(1 <= len(request_id) <= 200 for request_id in ids)


def test_a_long_name_of_a_run_is_shortened_to_one_of_its_own() -> None:
    long = "r" * 199

    assert bounded_run_id(long) == long
    assert bounded_run_id(long + "a\ud800") == bounded_run_id(long + "a\ud800")
    assert len({bounded_run_id(long + end) for end in ("", "aa", "bb", "c" * 300)}) == 4
    assert len(bounded_run_id("ü" * 300)) == 200


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_what_is_sent_is_what_the_server_reads_of_plain_json(text: str) -> None:
    plain = json.loads(json.dumps(text))

    assert json.loads(encoded(text)) == re.sub("[\ud800-\udfff]", "\ufffd", plain)
