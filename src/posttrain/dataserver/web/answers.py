"""Refusals as HTTP responses."""

from collections.abc import Sequence

from starlette.responses import JSONResponse

from posttrain.dataserver.refusals import Code, Refusal
from posttrain.dataserver.schemas import Problem

_STATUS: dict[Code, int] = {
    "bad_request": 422,
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
    """The response that tells of a refusal, as a `Problem`.

    Args:
        ends_connection: nothing more is read from the client: not the rest of a body that it goes on sending.
    """
    problem = Problem(code=refusal.code, message=str(refusal), fields=list(fields))
    headers = {"Connection": "close"} if ends_connection else {}
    if refusal.code in _RETRY_AFTER_SECONDS:
        headers["Retry-After"] = str(_RETRY_AFTER_SECONDS[refusal.code])
    if refusal.code == "unauthorized":
        # A browser asks for a name and a password then; any name, and the token, will do.
        headers["WWW-Authenticate"] = 'Basic realm="toolkit-rl-dataserver", charset="UTF-8"'
    return JSONResponse(problem.model_dump(), _STATUS[refusal.code], headers)


def failure_response(request_id: str) -> JSONResponse:
    """The response to a request on which the server failed, as a `Problem`."""
    message = f"the server failed; its log says why, under the request id {request_id}"
    return JSONResponse(Problem(code="internal", message=message).model_dump(), 500)
