"""Answers from one or several OpenAI-compatible servers.

Each answer is a request of its own; several are in flight, and those that fail are repeated.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from posttrain.base.http import LoopThread, PassingError, pause
from posttrain.base.text import counted
from posttrain.config.sections.answerers import EndpointConfig
from posttrain.config.sections.generation import AnsweringConfig, SamplingConfig
from posttrain.conversation.messages import Conversation
from posttrain.conversation.templates import template_messages
from posttrain.errors import ConfigError, RunError, ServerError
from posttrain.inference.answering.partial import Answer
from posttrain.inference.answering.rows import Row
from posttrain.inference.answering.turns import Turns
from posttrain.inference.engine import Key, StopReason, derive_seed
from posttrain.inference.servers.link import Link

_REASONS = {"stop": StopReason.END, "length": StopReason.LENGTH}
# Fields that only some servers know, with the values at which they can be left out.
_EXTENSIONS = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class EndpointAnswers:
    """The answers of servers with the same model to rows, `n` to each; each has a seed of its own."""

    def __init__(self, server: EndpointConfig, rows: Sequence[Row], n: int, sampling: AnsweringConfig) -> None:
        self._server, self._rows, self._n, self._seed = server, rows, n, sampling.seed
        self._fields = request_fields(server, sampling)
        self._spent = 0

    def answers(self, done: AbstractSet[Key]) -> Iterator[tuple[Key, Answer]]:
        """Yield the answers as they finish, in any order, without those in `done`.

        Raises:
            ConfigError: a server rejects the key, or the key is not in the environment.
            RunError: the answers have cost more than `token_limit` tokens.
            ServerError: a server refuses a request, or there is no usable answer in several tries.
        """
        wanted = [(row, n) for row in range(len(self._rows)) for n in range(self._n) if (row, n) not in done]
        links = new_links(self._server)
        loop, turns = LoopThread("connection to the server"), Turns(links, self._server.concurrency)
        threads = ThreadPoolExecutor(self._server.concurrency * len(links))

        def ask(key: Key) -> tuple[Answer, int]:
            return loop.run(self._answer(turns, *key))

        try:
            asked = {threads.submit(ask, key): key for key in wanted}
            for future in as_completed(asked):
                answer, cost = future.result()
                yield asked[future], answer
                self._count(cost)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            loop.close(turns.close())

    def _count(self, cost: int) -> None:
        self._spent += cost
        if self._server.token_limit is not None and self._spent > self._server.token_limit:
            raise RunError(
                f"the answers of {self._server.model} have cost {self._spent:,} tokens, more than token_limit: "
                f"{self._server.token_limit}"
            )

    async def _answer(self, turns: Turns, row: int, sample: int) -> tuple[Answer, int]:
        """The answer, and what it costs in tokens."""
        body = {
            **self._fields,
            **conversation_fields(self._rows[row].prompt),
            "seed": derive_seed(self._seed, self._rows[row].index, sample) % 2**31,
        }
        most = self._server.retries + len(self._server.urls)
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(PassingError),
            stop=stop_after_attempt(most),
            wait=pause,
            reraise=True,
        )
        try:
            return await attempts(turns.taken, partial(self._ask, body))
        except PassingError as error:
            raise ServerError(f"{error}; {counted(most, 'attempt')} failed") from None

    async def _ask(self, body: Mapping[str, Any], link: Link) -> tuple[Answer, int]:
        reply = await link.post("/chat/completions", body, self._server.request_seconds)
        return read_answer(reply, link.place)


def new_links(server: EndpointConfig) -> list[Link]:
    """A connection to each of the servers; ConfigError if their key is not in the environment."""
    key = None if server.token_env is None else os.environ.get(server.token_env, "")
    if key == "":
        raise ConfigError(f"the environment variable {server.token_env} is not set; {server.place} requires a key")
    return [Link("model's", url, key, "token_env") for url in server.urls]


def request_fields(server: EndpointConfig, sampling: SamplingConfig) -> dict[str, Any]:
    """The fields of every request; the server's own `request` replaces any of them."""
    extensions = {name: getattr(sampling, name) for name, usual in _EXTENSIONS.items()}
    return {
        "model": server.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_new_tokens,
        **({"stop": list(sampling.stop)} if sampling.stop else {}),
        **{name: value for name, value in extensions.items() if value != _EXTENSIONS[name]},
        **server.request,
    }


def conversation_fields(conversation: Conversation) -> dict[str, Any]:
    """The messages, and the tools if there are any, as a request has them: each tool call has an id."""
    messages, open_calls = template_messages(conversation), []
    for place, message in enumerate(messages):
        for number, call in enumerate(message.get("tool_calls", ())):
            call["id"] = f"call_{place}_{number}"
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
            open_calls.append(call["id"])
        if message["role"] == "tool" and open_calls:
            message["tool_call_id"] = open_calls.pop(0)
    return {"messages": messages, **({"tools": list(conversation.tools)} if conversation.tools else {})}


def read_answer(reply: Any, place: str) -> tuple[Answer, int]:
    """The answer in a reply, and its cost in tokens as far as the server tells it; PassingError if there is none."""
    match reply:
        case {"choices": [{"message": {"content": str() | None as content}, "finish_reason": str(reason)}, *_]}:
            usage = reply.get("usage")
            usage = usage if isinstance(usage, Mapping) else {}
            tokens, all_tokens = (_count_in(usage, name) for name in ("completion_tokens", "total_tokens"))
            return Answer(content or "", str(_REASONS.get(reason, StopReason.END)), tokens), all_tokens or tokens or 0
    raise PassingError(f"{place} answered without a message")


def _count_in(usage: Mapping[str, Any], name: str) -> int | None:
    count = usage.get(name)
    return count if isinstance(count, int) and not isinstance(count, bool) and count >= 0 else None
