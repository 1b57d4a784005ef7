"""How the dataserver answers a request that it refuses or fails to handle: with a `Problem`, as in the protocol."""

from collections.abc import Sequence

from starlette.responses import JSONResponse

from posttrain.dataserver.schemas import Problem
from posttrain.web.refusal import Code, Refusal

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


def problem_content(code: str, message: str) -> bytes:
    """The body of an answer that is written before there is a request."""
    return Problem(code=code, message=message).model_dump_json().encode()
