"""A server of chat completions whose answers depend on the prompt and the seed alone."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI

from dataserver.graders.services import serving_app

WORDS = ("a", "e", "o", "an apple", "ten", "no")


class WordsServer:
    """Answers each request with up to three words.

    Attributes:
        asked: the messages of each request.
    """

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self.app = FastAPI()
        self.app.post("/v1/chat/completions")(self._complete)

    async def _complete(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(request["messages"])
        chance = random.Random(f"{request['seed']} {request['messages']}")
        text = " ".join(chance.choices(WORDS, k=chance.randint(1, 3)))
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [choice]}


@contextmanager
def words_server() -> Iterator[tuple[WordsServer, str]]:
    """A running server and its URL."""
    server = WordsServer()
    with serving_app(server.app) as url:
        yield server, f"{url}/v1"
