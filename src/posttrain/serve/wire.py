"""The bodies of answers in OpenAI's form: whole, or as the chunks of a stream."""

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

from posttrain.inference.engine import StopReason
from posttrain.serve.asked import Asked
from posttrain.serve.batching import Ended, Scored
from posttrain.web.refusal import Code, Refusal

STATUS: dict[Code, int] = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "too_large": 413,
    "overloaded": 429,
    "internal": 500,
    "unavailable": 503,
    "too_slow": 504,
}
_CODES: dict[Code, str] = {"unauthorized": "invalid_api_key", "not_found": "model_not_found"}
# As other servers write the logarithm of a probability that was rounded to 0, for which JSON has no number.
_LEAST_LOGPROB = -9999.0


def error_body(code: Code, message: str) -> dict[str, Any]:
    """Why a request was refused; `param` is the field that a message begins with."""
    status = STATUS.get(code, 400)
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(status)
    kind = kind or ("invalid_request_error" if status < 500 else "server_error")
    head, colon, _ = message.partition(":")
    param = head if colon and status == 400 and head.replace("_", "").replace(".", "").isalnum() else None
    return {"error": {"message": message, "type": kind, "param": param, "code": _CODES.get(code, code)}}


class Form:
    """Writes the answers to one request, of a chat or (if not `is_chat`) of text."""

    def __init__(self, model: str, asked: Sequence[Asked], is_chat: bool) -> None:
        self._asked, self._is_chat = asked, is_chat
        self._n = asked[0].request.n
        kind = "chatcmpl" if is_chat else "cmpl"
        self._head = {"id": f"{kind}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def whole(self, texts: dict[int, str], ended: dict[int, Ended], scored: dict[int, Scored]) -> dict[str, Any]:
        """All answers by their numbers, and the scores of prompts by theirs."""
        choices = [self._choice(index, texts.get(index, ""), ended.get(index), scored) for index in self._indices()]
        kind = "chat.completion" if self._is_chat else "text_completion"
        return {**self._head, "object": kind, "choices": choices, "usage": self.usage(ended)}

    def index(self, place: int, choice: int) -> int:
        """The number of an answer among all of the request."""
        return place * self._n + choice

    def first(self) -> list[bytes]:
        """What comes before the text of each answer in a stream."""
        if not self._is_chat:
            return []
        role = {"role": "assistant", "content": ""}
        return [self._chunk([{"index": index, "delta": role, "finish_reason": None}]) for index in self._indices()]

    def piece(self, index: int, text: str) -> bytes:
        """The next text of an answer in a stream."""
        said = {"delta": {"content": text}} if self._is_chat else {"text": text, "logprobs": None}
        return self._chunk([{"index": index, **said, "finish_reason": None}])

    def last(self, index: int, ended: Ended) -> bytes:
        """The end of an answer in a stream."""
        said: dict[str, Any] = {"delta": {}} if self._is_chat else {"text": "", "logprobs": None}
        return self._chunk([{"index": index, **said, "finish_reason": _reason(ended)}])

    def counted(self, ended: dict[int, Ended]) -> bytes:
        """The numbers of tokens at the end of a stream."""
        return self._chunk([], usage=self.usage(ended))

    def usage(self, ended: dict[int, Ended]) -> dict[str, int]:
        """Numbers of tokens: of the prompts, each once, and of the answers with their end tokens."""
        prompt = sum(len(each.request.prompt_ids) for each in self._asked)
        said = sum(len(each.completion.token_ids) for each in ended.values())
        return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}

    def _indices(self) -> range:
        return range(self._n * len(self._asked))

    def _choice(self, index: int, text: str, ended: Ended | None, scored: dict[int, Scored]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "finish_reason": "length" if ended is None else _reason(ended)}
        if self._is_chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {**choice, "message": message, "logprobs": ended and _chat_logprobs(ended)}
        place = index // self._n
        if place in scored:
            choice["prompt_logprobs"] = _prompt_logprobs(self._asked[place].request.prompt_ids, scored[place])
        return {**choice, "text": text, "logprobs": ended and _text_logprobs(ended)}

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return event({**self._head, "object": kind, "choices": choices, **more})


def event(body: Any) -> bytes:
    """One event of a stream."""
    return b"data: " + json.dumps(body, ensure_ascii=False, allow_nan=False).encode() + b"\n\n"


def failed_event(refusal: Refusal) -> bytes:
    """The event that ends a stream in which something failed."""
    return event(error_body(refusal.code, str(refusal)))


DONE = b"data: [DONE]\n\n"


def _reason(ended: Ended) -> str:
    return "length" if ended.completion.stop_reason in (StopReason.LENGTH, StopReason.CUT) else "stop"


def _bounded(logprobs: Sequence[float]) -> list[float]:
    return [max(value, _LEAST_LOGPROB) for value in logprobs]


def _chat_logprobs(ended: Ended) -> dict[str, Any] | None:
    if ended.completion.logprobs is None:
        return None
    values = _bounded(ended.completion.logprobs[: len(ended.tokens)])
    content = [
        {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
        for token, value in zip(ended.tokens, values, strict=True)
    ]
    return {"content": content, "refusal": None}


def _text_logprobs(ended: Ended) -> dict[str, Any] | None:
    if ended.completion.logprobs is None:
        return None
    tokens = list(ended.tokens)
    offsets = [sum(map(len, tokens[:place])) for place in range(len(tokens))]
    values = _bounded(ended.completion.logprobs[: len(tokens)])
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": offsets}


def _prompt_logprobs(ids: Sequence[int], scored: Scored) -> list[dict[str, Any] | None]:
    """As vLLM writes them: None for the first token, then each token's id, its logarithm and its text."""
    rest = zip(ids[1:], _bounded(scored.logprobs), scored.tokens[1:], strict=True)
    return [None, *({str(id_): {"logprob": value, "decoded_token": token}} for id_, value, token in rest)]
