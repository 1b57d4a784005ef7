"""Handle request ids, access log, token check and body limits before the routes of a server.

How a refused request is answered is the server's: a `Respond` writes it.
"""

import asyncio
import base64
import binascii
import hmac
import logging
import re
import time
import uuid
import zlib
from collections.abc import Callable, Collection
from typing import Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.web.refusal import Refusal

logger = logging.getLogger("posttrain.web.requests")

# Health checks for load balancers; they reveal no prompts and no rewards.
_OPEN_TO_ALL = ("/healthz", "/readyz")

# As other servers record requests whose client disconnected.
_NOT_ANSWERED = 499

_USABLE_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)

# Of two copies, a proxy might read the other one, and admit a name or token that this server never sees.
_ONCE = (b"host", b"authorization", b"content-type", b"content-encoding", b"content-length", b"transfer-encoding")

# How much is unpacked before other requests have their turn.
_PIECE_BYTES = 2**20

_ABOUT_THE_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


class Respond(Protocol):
    """Writes the response to a refused request."""

    def __call__(self, refusal: Refusal, *, ends_connection: bool = False) -> Response:
        """`ends_connection`: read nothing more from the client, not even the rest of a body that it is sending."""
        ...


class ClearHeaders:
    """Refuses a request in which a header that may occur only once comes twice."""

    def __init__(self, app: ASGIApp, respond: Respond) -> None:
        self._app = app
        self._respond = respond

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope["headers"]] if scope["type"] == "http" else []
        if len(set(names)) < len(names) and (twice := [name for name in _ONCE if names.count(name) > 1]):
            refusal = Refusal("bad_request", f"the request has the header {twice[0].decode()} twice")
            await self._respond(refusal, ends_connection=True)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class TokenCheck:
    """Refuses a request without the token, as a bearer token or as the password of Basic authentication."""

    def __init__(self, app: ASGIApp, respond: Respond, token: str) -> None:
        self._app = app
        self._respond = respond
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_TO_ALL or self._is_welcome(scope):
            await self._app(scope, receive, send)
            return
        refusal = Refusal("unauthorized", "this server requires a token: Authorization: Bearer <token>")
        await self._respond(refusal, ends_connection=True)(scope, receive, send)

    def _is_welcome(self, scope: Scope) -> bool:
        kind, _, value = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        given = value.strip()
        if kind.lower() == b"basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif kind.lower() != b"bearer":
            return False
        # Takes equally long for a token that is nearly right and for one that is all wrong.
        return hmac.compare_digest(given, self._token)


class RequestLog:
    """Gives each request an id (the client's own, if usable), logs and counts it, and answers it if it fails."""

    def __init__(
        self,
        app: ASGIApp,
        paths: Collection[str],
        failed: Callable[[str], Response],
        count: Callable[[str, int, float], None] = lambda endpoint, status, seconds: None,
    ) -> None:
        """Wrap `app`.

        Args:
            paths: those logged and counted under their own names; any other is unknown.
            failed: the response to a request with this id that the server failed to handle.
            count: gets the path, the status and the seconds of each request.
        """
        self._app = app
        self._paths = frozenset(paths)
        self._failed = failed
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        request_id = sent if _USABLE_ID.fullmatch(sent) else uuid.uuid4().hex
        endpoint = scope["path"] if scope["path"] in self._paths else "unknown"
        begin, status = time.perf_counter(), _NOT_ANSWERED

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                added = [(b"x-request-id", request_id.encode()), (b"x-content-type-options", b"nosniff")]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            logger.exception("%s %s failed", scope["method"], endpoint, extra={"request_id": request_id})
            if status != _NOT_ANSWERED:
                raise
            await self._failed(request_id)(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begin
            self._count(endpoint, status, seconds)
            logger.info(
                "%s %s %d %.1f ms",
                scope["method"],
                endpoint,
                status,
                seconds * 1000,
                extra={"request_id": request_id, "status": status, "ms": round(seconds * 1000, 1)},
            )


class BodyLimit:
    """Refuses a body as soon as it is known to be too large, packed or unpacked, or too much together with those in
    progress.

    Args:
        names: of the two limits, for messages.
    """

    def __init__(
        self, app: ASGIApp, respond: Respond, max_bytes: int, max_bytes_together: int, names: tuple[str, str]
    ) -> None:
        self._app = app
        self._respond = respond
        self._name, self._name_together = names
        self._max_bytes = max_bytes
        self._left = max_bytes_together

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        body = _Body()
        try:
            is_whole = await self._read(body, dict(scope["headers"]), receive)
        except Refusal as refusal:
            # What has not been read of the body never will be.
            await self._respond(refusal, ends_connection=True)(scope, receive, send)
        else:
            if is_whole:
                scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_THE_BODY]
                await self._app(scope, body.replay(receive), send)
        finally:
            self._left += body.size

    async def _read(self, body: "_Body", headers: dict[bytes, bytes], receive: Receive) -> bool:
        """Read and unpack a body; False if the client disconnected."""
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding not in (b"identity", b"gzip"):
            raise Refusal(
                "bad_request", f"Content-Encoding {encoding.decode('latin-1')!r} is not supported; send gzip or none"
            )
        if int(headers.get(b"content-length", b"0")) > self._max_bytes:
            raise self._too_large()
        unpack = zlib.decompressobj(wbits=31) if encoding == b"gzip" else None
        received, has_more = 0, True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part, has_more = message.get("body", b""), message.get("more_body", False)
            received += len(part)
            if unpack is None:
                self._add(body, part, received)
            else:
                await self._unpack(body, unpack, part, received)
        if unpack is not None and not unpack.eof:
            raise Refusal("bad_request", "the gzip body is truncated")
        if unpack is not None and unpack.unused_data:
            raise Refusal("bad_request", "there is data after the end of the gzip body")
        return True

    async def _unpack(self, body: "_Body", unpack: "zlib._Decompress", part: bytes, received: int) -> None:
        while True:
            try:
                piece = unpack.decompress(part, _PIECE_BYTES)
            except zlib.error:
                raise Refusal("bad_request", "the body is not gzip, though Content-Encoding says so") from None
            self._add(body, piece, received)
            if len(piece) < _PIECE_BYTES:
                return
            part = unpack.unconsumed_tail
            await asyncio.sleep(0)

    def _add(self, body: "_Body", part: bytes, received: int) -> None:
        if max(received, body.size + len(part)) > self._max_bytes:
            raise self._too_large()
        if len(part) > self._left:
            raise Refusal("overloaded", f"the bodies being received fill {self._name_together}; try again later")
        body.content += part
        body.size += len(part)
        self._left -= len(part)

    def _too_large(self) -> Refusal:
        megabytes = self._max_bytes / 2**20
        return Refusal("too_large", f"the body is larger than {megabytes:g} MiB ({self._name}); send fewer items")


class _Body:
    def __init__(self) -> None:
        self.content = bytearray()
        self.size = 0
        """Of the content, also after it has been passed on."""

    def replay(self, receive: Receive) -> Receive:
        """Pass the content on, as if it were being received now."""
        left = [bytes(self.content)]
        self.content = bytearray()

        async def replayed() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            return await receive()

        return replayed
