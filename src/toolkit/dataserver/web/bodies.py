"""Request bodies: bounded before they are read, unpacked within the bound, and parsed leniently about text.

A model may write half a surrogate pair, and a trainer sends it as JSON may hold it. No encoder takes such text,
so each half is read as U+FFFD, before anything else sees it.
"""

import json
import re
import zlib
from typing import Any

from fastapi.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolkit.dataserver.refusals import Refusal
from toolkit.dataserver.web.answers import refusal_response

_SURROGATE = re.compile("[\ud800-\udfff]")


class BodyLimit:
    """Answers 413 as soon as a body is known to be too large, also one that grows when it is unpacked."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        try:
            body = await self._read(headers, receive)
        except Refusal as refusal:
            # Some of the body may not have been read, and will not be.
            await refusal_response(refusal, ends_connection=True)(scope, receive, send)
            return
        if body is None:
            return
        scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_THE_BODY]
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """The unpacked body; None where the client went away."""
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding not in (b"identity", b"gzip"):
            raise Refusal(
                "bad_request", f"Content-Encoding {encoding.decode('latin-1')!r} is not known; send gzip or none"
            )
        if int(headers.get(b"content-length", b"0")) > self._max_bytes:
            raise self._too_large()
        unpack = zlib.decompressobj(wbits=31) if encoding == b"gzip" else None
        body = bytearray()
        received = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            received += len(part)
            try:
                body += unpack.decompress(part, self._max_bytes + 1 - len(body)) if unpack else part
            except zlib.error:
                raise Refusal("bad_request", "the body is no gzip, though Content-Encoding says so") from None
            if max(received, len(body)) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                break
        if unpack is not None and not unpack.eof:
            raise Refusal("bad_request", "the gzip body is cut short")
        if unpack is not None and unpack.unused_data:
            raise Refusal("bad_request", "something follows the end of the gzip body")
        return bytes(body)

    def _too_large(self) -> Refusal:
        megabytes = self._max_bytes / 2**20
        return Refusal("too_large", f"the body is larger than {megabytes:g} MiB (limits.body_mb); send fewer items")


_ABOUT_THE_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


def _replay(body: bytes, receive: Receive) -> Receive:
    left = [body]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed


class LenientRequest(Request):
    """A request whose JSON may hold half surrogate pairs."""

    async def json(self) -> Any:
        """The body's value.

        Raises:
            HTTPException: it is no JSON.
        """
        body = await self.body()
        try:
            value = json.loads(body.decode())
            return _without_surrogates(value) if b"\\u" in body else value
        except RecursionError:
            raise HTTPException(422, "the body is nested too deep") from None
        except ValueError as error:
            raise HTTPException(422, f"the body is no JSON in UTF-8: {error}") from None


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    return value
