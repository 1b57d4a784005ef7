"""Who may ask: the bearer token, headers of one meaning, and the log line, id and count of each request."""

import base64
import binascii
import hmac
import logging
import re
import time
import uuid
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.dataserver.metrics import Metrics
from posttrain.dataserver.refusals import Refusal
from posttrain.dataserver.web.answers import failure_response, refusal_response

logger = logging.getLogger("posttrain.dataserver.requests")

# A load balancer asks these, and learns nothing.
_OPEN_TO_ALL = ("/healthz", "/readyz")

# As other servers count requests whose client went away.
_NOT_ANSWERED = 499

_USABLE_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


# A proxy that reads the other one of two would let somebody in under a name or token that this server never sees.
_ONCE = (b"host", b"authorization", b"content-type", b"content-encoding", b"content-length", b"transfer-encoding")


class ClearHeaders:
    """Answers 422 where a header comes twice that means something only once."""

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
    """Answers 401 unless a request carries the token, as a bearer or as the password of Basic authentication."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_TO_ALL or self._is_welcome(scope):
            await self._app(scope, receive, send)
            return
        refusal = Refusal("unauthorized", "this server wants its token: Authorization: Bearer <token>")
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
        # Takes as long for a token that is nearly right as for one that is all wrong.
        return hmac.compare_digest(given, self._token)


class RequestLog:
    """Gives each request an id (the client's own, if it sends one), logs it, counts it, and tells of a failure."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        """`paths`: those that are counted by their names; any other one is counted as unknown."""
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
