"""What keeps a trainer from a good answer: what may pass, and what will not."""

from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from pydantic import ValidationError

from posttrain.base.secrets import hidden, without_secrets
from posttrain.base.text import clipped
from posttrain.dataserver.schemas import Problem
from posttrain.errors import ServerError

_BUSY_OR_BROKEN = (408, 425, 429)
_SHOWN_FIELDS = 20
_LONGEST_TOLD = 1000


class PassingError(Exception):
    """There is no good answer, and there may be one if the request is repeated."""

    def __init__(self, message: str, wait_seconds: float = 0.0) -> None:
        """`wait_seconds`: what the server asks to wait at least."""
        super().__init__(message)
        self.wait_seconds = wait_seconds


class OutageError(ServerError):
    """There was no good answer, however often the request was repeated."""


class WrongServerError(ServerError):
    """The address or the token is wrong. Where a run begins that is a fault of its config."""


def refusal(
    place: str, path: str, response: httpx.Response, content: bytes, secrets: Sequence[str] = ()
) -> PassingError | ServerError:
    """The error that an answer other than 200 stands for; `content` is its body.

    Args:
        secrets: what was sent and is not shown, should the server send it back.
    """
    problem = _problem(hidden(content.decode("utf-8", "replace"), secrets))
    problem = Problem(
        code=problem.code, message=as_told(problem.message), fields=list(map(as_told, problem.fields[:_SHOWN_FIELDS]))
    )
    status, reason = response.status_code, as_told(hidden(response.reason_phrase, secrets))
    told = f"{place} answered {path} with {status}: {problem.message or reason}"
    if status < 300 or status >= 500 or status in _BUSY_OR_BROKEN:
        return PassingError(told, _retry_after(response.headers.get("Retry-After")))
    if status == 401:
        state = "refuses the token" if "Authorization" in response.request.headers else "wants a token"
        return WrongServerError(
            f"{place} {state}: put the token that the server was started with (its listen.token_env) into "
            "the environment variable that dataserver.token_env of this run's config names"
        )
    if status in (404, 405) or response.is_redirect:
        location = as_told(without_secrets(response.headers.get("Location", ""), secrets))
        where = f", and points to {location}" if location else ""
        return WrongServerError(f"{told}{where}; is this the address of a toolkit-rl-dataserver?")
    if problem.code == "config_mismatch":
        return config_changed(place, problem.message)
    fields = f" (fields: {', '.join(problem.fields)})" if problem.fields else ""
    return ServerError(told + fields)


def as_told(text: str) -> str:
    """What a server says as a message repeats it: short, on one line, and without what would steer a terminal."""
    return clipped(" ".join(text[:_LONGEST_TOLD].split()))


def config_changed(place: str, details: str) -> ServerError:
    """The error of a server that gives other prompts and rewards than the run began with."""
    return ServerError(
        f"{place} no longer serves what this run began with: {details}. Start it with the config, data and graders "
        "of this run and resume, or begin a new run"
    )


def _problem(content: str) -> Problem:
    try:
        return Problem.model_validate_json(content)
    except ValidationError:  # it comes from a proxy, or from another server
        return Problem(code="", message=content)


def _retry_after(header: str | None) -> float:
    """Seconds, from a number of them or a date; 0 where there is neither."""
    if header is None:
        return 0.0
    if header.strip().isdecimal():
        return float(header)
    try:
        until = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # also a year that no calendar has
        return 0.0
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - datetime.now(UTC)).total_seconds())
