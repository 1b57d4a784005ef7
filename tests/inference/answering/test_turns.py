"""Which of several servers gets a request: the least loaded one that works, and a failed one now and then."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from evaluate.chat_server import ChatServer, Reply, chat_server
from posttrain.config.sections.answerers import EndpointConfig
from posttrain.config.sections.generation import AnsweringConfig
from posttrain.conversation.messages import parse_conversation
from posttrain.errors import ServerError
from posttrain.inference.answering.endpoint import EndpointAnswers
from posttrain.inference.answering.rows import Row


def slowly(request: Mapping[str, Any]) -> str:
    time.sleep(0.03)
    return request["messages"][-1]["content"]


@pytest.fixture
def pair() -> Iterator[tuple[ChatServer, ChatServer]]:
    with chat_server(slowly) as one, chat_server(slowly) as other:
        yield one, other


def said(count: int, *servers: ChatServer, **options: Any) -> list[str]:
    """The answers to "0", "1" and so on, in order; each server takes 2 at once."""
    config = EndpointConfig(url=tuple(each.url for each in servers), model="m", concurrency=2, **options)
    prompts = [parse_conversation([{"role": "user", "content": str(number)}]) for number in range(count)]
    rows = [Row("a", f"a:{number}", number, number, prompt) for number, prompt in enumerate(prompts)]
    answers = dict(EndpointAnswers(config, rows, 1, AnsweringConfig()).answers(frozenset()))
    return [answers[number, 0].text for number in range(count)]


def test_requests_go_to_the_server_with_the_least_to_do(pair: tuple[ChatServer, ChatServer]):
    one, other = pair
    other.answer = lambda request: (time.sleep(0.2), slowly(request))[1]
    assert said(40, one, other) == [str(number) for number in range(40)]
    assert len(one.requests) + len(other.requests) == 40
    assert len(one.requests) > 2 * len(other.requests) > 0


def test_a_failing_server_is_tried_with_one_request_now_and_then(pair: tuple[ChatServer, ChatServer]):
    one, other = pair
    other.always = Reply(500, b"oops")
    began = time.monotonic()
    assert said(100, one, other) == [str(number) for number in range(100)]
    # Two at first, and one after 1 s, 3 s, 7 s and so on.
    assert len(other.requests) <= 2 + (time.monotonic() - began) / 1
    assert len(one.requests) == 100


def test_a_busy_server_is_left_alone_as_long_as_it_wants_and_holds_nothing_up(pair: tuple[ChatServer, ChatServer]):
    one, other = pair
    other.always = Reply(429, b"slow down", {"Retry-After": "60"})
    began = time.monotonic()
    assert said(20, one, other) == [str(number) for number in range(20)]
    assert time.monotonic() - began < 30
    assert len(other.requests) <= 2


def test_a_server_that_comes_back_is_used_again(pair: tuple[ChatServer, ChatServer], caplog: pytest.LogCaptureFixture):
    one, other = pair
    other.bad = [Reply(500, b"oops"), Reply(500, b"oops")]
    assert said(120, one, other) == [str(number) for number in range(120)]
    assert len(other.requests) > 10
    assert "left out" in caplog.messages[0] and "used again" in caplog.messages[-1]


def test_if_all_fail_a_request_is_given_up_after_one_more_try_for_each_server(pair: tuple[ChatServer, ChatServer]):
    one, other = pair
    one.always = other.always = Reply(500, b"oops")
    with pytest.raises(ServerError, match="3 attempts failed"):
        said(1, one, other, retries=1)
    assert len(one.requests) + len(other.requests) == 3
