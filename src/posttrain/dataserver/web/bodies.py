"""Request bodies: each, and all together, bounded before they are read and while they are unpacked."""

import asyncio
import zlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.dataserver.refusals import Refusal
from posttrain.dataserver.web.answers import refusal_response

# So much is unpacked before others have their turn.
_PIECE_BYTES = 2**20

_ABOUT_THE_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


class BodyLimit:
    """Answers 413 as soon as a body is known to be too large, also one that grows when it is unpacked, and 429 where
    it would be too much together with those under way."""

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
            # Some of the body may not have been read, and will not be.
            await refusal_response(refusal, ends_connection=True)(scope, receive, send)
        else:
            if is_whole:
                scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in _ABOUT_THE_BODY]
                await self._app(scope, body.replay(receive), send)
        finally:
            self._left += body.size

    async def _read(self, body: "_Body", headers: dict[bytes, bytes], receive: Receive) -> bool:
        """Read and unpack a body; False where the client went away."""
        encoding = headers.get(b"content-encoding", b"identity").lower()
        if encoding not in (b"identity", b"gzip"):
            raise Refusal(
                "bad_request", f"Content-Encoding {encoding.decode('latin-1')!r} is not known; send gzip or none"
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
            raise Refusal("bad_request", "the gzip body is cut short")
        if unpack is not None and unpack.unused_data:
            raise Refusal("bad_request", "something follows the end of the gzip body")
        return True

    async def _unpack(self, body: "_Body", unpack: "zlib._Decompress", part: bytes, received: int) -> None:
        while True:
            try:
                piece = unpack.decompress(part, _PIECE_BYTES)
            except zlib.error:
                raise Refusal("bad_request", "the body is no gzip, though Content-Encoding says so") from None
            self._add(body, piece, received)
            if len(piece) < _PIECE_BYTES:
                return
            part = unpack.unconsumed_tail
            await asyncio.sleep(0)

    def _add(self, body: "_Body", part: bytes, received: int) -> None:
        if max(received, body.size + len(part)) > self._max_bytes:
            raise self._too_large()
        if len(part) > self._left:
            raise Refusal("overloaded", "the bodies under way fill limits.bodies_mb; try again later")
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
        """Of the content, also after that was handed on."""

    def replay(self, receive: Receive) -> Receive:
        """Hand the content on, as if it were received now."""
        left = [bytes(self.content)]
        self.content = bytearray()

        async def replayed() -> Message:
            if left:
                return {"type": "http.request", "body": left.pop(), "more_body": False}
            return await receive()

        return replayed
