"""What the errors of huggingface_hub mean: try again, or tell the user."""

import httpx

from posttrain.base.http import PassingError, retry_after
from posttrain.base.secrets import without_secrets
from posttrain.base.text import clipped, first_line
from posttrain.errors import ConfigError, ToolkitError

# A conflict, a commit that another one preceded, too many requests, and whatever goes wrong within the hub.
_PASSING = frozenset({408, 409, 412, 429})


def described_error(error: Exception, repo: str, token: str) -> ToolkitError | PassingError | None:
    """The error in our words, without secrets; PassingError if it may pass, None if it is not about the hub.

    Args:
        token: the variable that holds the token.
    """
    if isinstance(error, ToolkitError | PassingError):
        return error
    response = _response(error)
    if response is not None:
        return _refusal(error, response, repo, token)
    if _caused_by(error, httpx.TransportError):
        return PassingError(f"the connection failed ({_reason(error)})")
    # The library reads answers without checking them.
    if isinstance(error, ValueError | LookupError | TypeError):
        return PassingError(f"its answer cannot be understood ({_reason(error)})")
    return None


def _refusal(error: Exception, response: httpx.Response, repo: str, token: str) -> ToolkitError | PassingError:
    status = response.status_code
    if status in _PASSING or status >= 500:
        return PassingError(f"the hub answers with {status} ({_reason(error)})", retry_after(response))
    if status == 401:
        return ConfigError(
            f"the hub refuses the token in {token} (401); set it to a valid one that may write to {repo}"
        )
    if status == 403:
        return ConfigError(f"the token in {token} may not write to {repo} (403); give it that right, or use another")
    if status == 404:
        return ConfigError(f"there is no repository {repo}, or the token in {token} may not see it (404)")
    return ConfigError(f"the hub refuses what would be pushed to {repo} with {status}: {_reason(error)}")


def _response(error: BaseException | None) -> httpx.Response | None:
    """The answer of the hub that an error, or the one that caused it, is about."""
    while error is not None:
        found = getattr(error, "response", None)
        if isinstance(found, httpx.Response):
            return found
        error = error.__cause__
    return None


def _caused_by(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__
    return False


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None and not str(error).strip():
        error = error.__cause__
    return clipped(without_secrets(first_line(error)))
