"""Parse JSON request bodies within limits on size, depth and keys.

A model may write a lone surrogate, which JSON can carry but no encoder accepts. Each one is replaced by U+FFFD before
anything else sees it.
"""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_type_hints

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from posttrain.web.refusal import Refusal

_SURROGATE = re.compile("[\ud800-\udfff]")

# Smaller bodies are parsed in some hundredths of a second at most, whatever they hold.
_LARGE_BYTES = 2 * 2**20
# More than the numbers of a report of a step.
_MOST_KEYS = 256

M = TypeVar("M", bound=BaseModel)


class JsonRoute(APIRoute):
    """A route whose `body` is a model, read and checked before FastAPI sees it.

    `app.state.most_values` limits the values in a large body.

    FastAPI itself would build all values of a body, and then a message for each wrong one, while nobody else is
    served.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, given the body as a model."""
        handle = super().get_route_handler()
        model = get_type_hints(self.endpoint).get("body")
        if model is None:
            return handle

        async def handle_checked(request: Request) -> Response:
            checked = _CheckedRequest(request.scope, request.receive)
            await checked.check(model, request.app.state.most_values)
            return await handle(checked)

        return handle_checked


class _CheckedRequest(Request):
    _checked: BaseModel

    async def check(self, model: type[BaseModel], most_values: int) -> None:
        """Parse the body as `model`.

        Raises:
            Refusal, RequestValidationError: the body is not one.
        """
        body = await self.body()
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            raise Refusal("bad_request", "send the body as JSON, with the header Content-Type: application/json")
        if len(body) < _LARGE_BYTES:
            self._checked = _parsed(body, model)
        else:
            self._checked = await asyncio.to_thread(_parsed_large, body, model, most_values)

    async def json(self) -> Any:
        """The checked model instead of the raw JSON; FastAPI accepts it as it is."""
        return self._checked


def _parsed_large(body: bytes, model: type[M], most_values: int) -> M:
    if _has_more_values(body, most_values):
        raise Refusal("bad_request", f"the body has more than {most_values} values, far more than any request has")
    return _parsed(body, model)


def _parsed(body: bytes, model: type[M]) -> M:
    try:
        value = json.loads(body.decode(), object_pairs_hook=_as_object) if body else None
        return model.model_validate(_without_surrogates(value) if b"\\u" in body else value)
    except RecursionError:
        raise Refusal("bad_request", "the body is nested too deep") from None
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in faults]) from None
    except ValueError as error:
        raise Refusal("bad_request", f"the body is not JSON in UTF-8: {error}") from None


def _has_more_values(body: bytes, most: int) -> bool:
    """Whether a body has more than `most` commas and opening brackets outside strings; once parsed, a body can take
    fifty times its size."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b'\\"' in body else body
    if bare.count(b'"') > 4 * most:
        return True
    # Without escapes, every second piece between quotation marks is a string.
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, (b",", b"[", b"{"))) > most


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(pairs) > _MOST_KEYS:
        raise Refusal("bad_request", f"an object in the body has {len(pairs)} keys, more than any request has")
    if len(found) < len(pairs):
        raise Refusal("bad_request", "an object in the body has a duplicate key")
    return found


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
