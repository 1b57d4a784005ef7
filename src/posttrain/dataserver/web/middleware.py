"""Handle request ids, access log, token check and body limits before the routes.

A request that is refused here is answered with a `Problem`, as in the protocol.
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
from collections.abc import Collection, Sequence

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.dataserver.metrics import Metrics
from posttrain.dataserver.schemas import Problem
from posttrain.dataserver.service import Code, Refusal

logger = logging.getLogger("posttrain.dataserver.requests")

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

_STATUS: dict[Code, int] = {
    "bad_request": 422,
    "no_substitute": 400,
    "config_mismatch": 409,
    "request_id_reused": 409,
    "too_large": 413,
    "overloaded": 429,
    "not_found": 404,
    "not_ready": 503,
    "unavailable": 503,
    "unauthorized": 401,
}
_RETRY_AFTER_SECONDS: dict[Code, int] = {"overloaded": 1, "not_ready": 2, "unavailable": 2}


def refusal_response(refusal: Refusal, fields: Sequence[str] = (), ends_connection: bool = False) -> JSONResponse:
    """The response to a refused request, as a `Problem`.

    Args:
        ends_connection: read nothing more from the client, not even the rest of a body that it is still sending.
    """
    problem = Problem(code=refusal.code, message=str(refusal), fields=list(fields))
    headers = {"Connection": "close"} if ends_connection else {}
    if refusal.code in _RETRY_AFTER_SECONDS:
        headers["Retry-After"] = str(_RETRY_AFTER_SECONDS[refusal.code])
    if refusal.code == "unauthorized":
        # A browser then asks for a name and a password; any name works, with the token as the password.
        headers["WWW-Authenticate"] = 'Basic realm="toolkit-rl-dataserver", charset="UTF-8"'
    return JSONResponse(problem.model_dump(), _STATUS[refusal.code], headers)


def failure_response(request_id: str) -> JSONResponse:
    """The response to a request that the server failed to handle, as a `Problem`."""
    message = f"the server failed; see its log for the request id {request_id}"
    return JSONResponse(Problem(code="internal", message=message).model_dump(), 500)


class ClearHeaders:
    """Answers 422 if a header that may occur only once comes twice."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = [name for name, _ in scope["headers"]] if scope["type"] == "http" else []
        if len(set(names)) < len(names) and (twice := [name for name in _ONCE if names.count(name) > 1]):
            refusal = Refusal("bad_request", f"the request has the header {twice[0].decode()} twice")
            await refusal_response(refusal, ends_connection=True)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class TokenCheck:
    """Answers 401 unless a request carries the token, as a bearer token or as the password of Basic authentication."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_TO_ALL or self._is_welcome(scope):
            await self._app(scope, receive, send)
            return
        refusal = Refusal("unauthorized", "this server requires a token: Authorization: Bearer <token>")
        await refusal_response(refusal, ends_connection=True)(scope, receive, send)

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
    """Gives each request an id (the client's own, if usable), logs and counts it, and answers 500 if it fails."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        """`paths`: those counted under their own names; any other is counted as unknown."""
        self._app = app
        self._metrics = metrics
        self._paths = frozenset(paths)

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
            await failure_response(request_id)(scope, receive, send_with_id)
        finally:
            seconds = time.perf_counter() - begin
            self._metrics.request(endpoint, status, seconds)
            logger.info(
                "%s %s %d %.1f ms",
                scope["method"],
                endpoint,
                status,
                seconds * 1000,
                extra={"request_id": request_id, "status": status, "ms": round(seconds * 1000, 1)},
            )


class BodyLimit:
    """Answers 413 as soon as a body is known to be too large, packed or unpacked, and 429 if it would be too much
    together with those in progress."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_bytes_together: int) -> None:
        self._app = app
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
            await refusal_response(refusal, ends_connection=True)(scope, receive, send)
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
            raise Refusal("overloaded", "the bodies being received fill limits.bodies_mb; try again later")
        body.content += part
        body.size += len(part)
        self._left -= len(part)

    def _too_large(self) -> Refusal:
        megabytes = self._max_bytes / 2**20
        return Refusal("too_large", f"the body is larger than {megabytes:g} MiB (limits.body_mb); send fewer items")


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
