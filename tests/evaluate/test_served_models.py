"""Models behind an OpenAI-compatible server: what is asked, how often, and what is made of bad replies."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import yaml
from chat_server import ChatServer, Reply, chat_server
from eval_cases import Case

KEY = "sk-secret-of-the-test-0123456789"


def says(request: Mapping[str, Any]) -> str:
    """An apple for every prompt but those about 3 of them."""
    return "no luck" if "3" in request["messages"][-1]["content"] else "apple"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server(says) as running:
        yield running


@pytest.fixture
def served(case: Case, server: ChatServer) -> Case:
    """The case with one task, and one model, which is behind the server; `retries` is 2."""
    case.change(models={"api": {"url": server.url, "model": "m", "retries": 2, "concurrency": 3}})
    case.change(tasks={"apples": {"type": "graded", "path": "questions.jsonl", "gold": None, "graders": {"says_a": 1}}})
    return case


def change_model(case: Case, **changes: Any) -> None:
    """Change keys of the served model."""
    models = yaml.safe_load(case.config.read_text())["models"]
    case.change(models={"api": models["api"] | changes})


def estimate(case: Case) -> dict[str, Any]:
    return case.results()["tasks"]["apples"]["measures"]["reward"]["estimates"]["api"]


def test_each_prompt_is_asked_once_with_the_sampling_options_and_a_seed_of_its_own(
    served: Case, server: ChatServer, run: Callable
):
    change_model(served, request={"reasoning_effort": "low"})
    run(served.config, "--set", "sampling.stop=['.']", "--set", "sampling.top_k=5")
    assert len(server.requests) == 12
    assert len({request.pop("seed") for request in server.requests}) == 12
    asked = sorted(request.pop("messages")[-1]["content"] for request in server.requests)
    questions = [json.loads(line)["prompt"] for line in (served.folder / "questions.jsonl").read_text().splitlines()]
    assert asked == sorted(questions)
    options = {"model": "m", "temperature": 0.0, "top_p": 1.0, "max_tokens": 8, "stop": ["."], "top_k": 5}
    assert server.requests == [{**options, "reasoning_effort": "low"}] * 12
    # "no luck" has no a, and the prompts that say 3 are one of twelve.
    assert (estimate(served)["value"], estimate(served)["prompts"]) == (pytest.approx(11 / 12), 12)
    facts = served.results()["tasks"]["apples"]["facts"]["api"]
    assert facts == {"cut": 0.0, "empty": 0.0, "tokens": 3.0}

    run(served.config, "--set", "sampling.stop=['.']", "--set", "sampling.top_k=5")
    assert len(server.requests) == 12


def test_a_server_that_does_not_tell_lengths_has_none(served: Case, server: ChatServer, run: Callable):
    server.tells_usage = False
    run(served.config)
    assert served.results()["tasks"]["apples"]["facts"]["api"] == {"cut": 0.0, "empty": 0.0}


def test_several_answers_are_as_many_requests_so_that_none_is_missing(served: Case, server: ChatServer, run: Callable):
    """A server may give fewer choices than a request's `n` asks for; each answer is a request of its own."""
    run(served.config, "--limit", "2", "--set", "tasks.apples.n=3", "--set", "sampling.temperature=1")
    assert len(server.requests) == 6
    assert not any("n" in request for request in server.requests)
    assert [line["sample"] for line in served.lines("api", "apples")] == [0, 1, 2] * 2


PASSING = {
    "an error inside": Reply(500, b"oops"),
    "a gateway's page": Reply(502, b"<html>bad gateway</html>"),
    "cut in the middle": Reply(200, b'{"choices": [{"message"', cut=True),
    "no JSON": Reply(200, b"<html>please log in</html>"),
    "JSON of another kind": Reply(200, b'["choices"]'),
    "no choices": Reply(200, b'{"choices": []}'),
    "no message": Reply(200, b'{"choices": [{"finish_reason": "stop"}]}'),
    "a number as the answer": Reply(200, b'{"choices": [{"message": {"content": 7}, "finish_reason": "stop"}]}'),
    "bytes that are no text": Reply(200, b"\xff\xfe{}"),
}


@pytest.mark.parametrize("bad", PASSING.values(), ids=PASSING)
def test_a_bad_reply_is_asked_for_again(bad: Reply, served: Case, server: ChatServer, run: Callable):
    server.bad = [bad, bad]
    run(served.config)
    assert len(server.requests) == 14
    assert estimate(served)["prompts"] == 12


def test_a_busy_server_is_asked_again_after_the_time_that_it_wants(served: Case, server: ChatServer, run: Callable):
    server.bad = [Reply(429, b"slow down", {"Retry-After": "1"})]
    began = time.monotonic()
    run(served.config, "--limit", "1")
    assert time.monotonic() - began >= 1
    assert len(server.requests) == 2


@pytest.mark.parametrize("bad", [PASSING["an error inside"], PASSING["no choices"]], ids=["500", "no choices"])
def test_a_server_that_stays_broken_fails_its_task_and_the_other_models_have_results(
    bad: Reply, served: Case, server: ChatServer, run: Callable
):
    tuned = {"config": "tuned.yaml"}
    served.change(models={"api": {"url": server.url, "model": "m", "retries": 1}, "tuned": tuned})
    server.always = bad
    told = run(served.config, "--limit", "2", "--set", "baseline=tuned", expect=1).stderr
    assert "2 attempts failed" in told and "1 result missing" in told
    task = served.results()["tasks"]["apples"]
    assert list(task["failures"]) == ["api"]
    assert list(task["measures"]["reward"]["estimates"]) == ["tuned"]
    assert not (served.output / "api").exists()


def test_what_was_answered_before_a_failure_is_not_asked_again(served: Case, server: ChatServer, run: Callable):
    change_model(served, retries=0, concurrency=1)

    def last_of_five(request: Mapping[str, Any]) -> str:
        if len(server.requests) == 5:
            server.always = Reply(500, b"oops")
        return says(request)

    server.answer = last_of_five
    run(served.config, expect=1)
    server.always, server.answer = None, says
    before = len(server.requests)
    run(served.config)
    assert len(server.requests) - before == 12 - 5
    assert estimate(served)["prompts"] == 12


def test_a_wrong_key_is_wrong_input_and_no_key_is_shown(
    served: Case, server: ChatServer, run: Callable, monkeypatch: pytest.MonkeyPatch
):
    server.key = KEY
    assert "requires a key" in run(served.config, expect=2).stderr
    assert len({request["seed"] for request in server.requests}) == len(server.requests)  # none was repeated
    change_model(served, token_env="KEY_OF_THE_TEST")
    told = run(served.config, expect=2).stderr
    assert "KEY_OF_THE_TEST is not set" in told
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-wrong-0123456789")
    told = run(served.config, expect=2).stderr
    assert "rejects the key" in told and "sk-wrong" not in told
    assert not (served.output / "results.json").exists()
    monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
    run(served.config)
    assert all(KEY.encode() not in path.read_bytes() for path in served.folder.rglob("*") if path.is_file())


def test_the_limit_of_tokens_ends_the_asking_and_keeps_what_was_paid_for(
    served: Case, server: ChatServer, run: Callable
):
    change_model(served, token_limit=45, concurrency=1)  # each answer costs 10
    told = run(served.config, expect=1).stderr
    assert "token_limit" in told
    [kept] = (served.output / "kept" / "answers").glob("*.partial")
    assert len(kept.read_text().splitlines()) == 1 + 5


def test_a_server_that_is_not_there_is_named(served: Case, run: Callable):
    change_model(served, url="http://127.0.0.1:9/v1", retries=0)
    assert "127.0.0.1:9" in run(served.config, expect=1).stderr


def test_what_one_server_cannot_answer_another_one_does(served: Case, server: ChatServer, run: Callable):
    change_model(served, url=["http://127.0.0.1:9/v1", server.url])
    run(served.config)
    assert len(server.requests) == 12
    assert estimate(served)["prompts"] == 12
