"""Why a request is refused as a whole; the web layer gives each reason its HTTP status."""

from typing import Literal

from posttrain.errors import ToolkitError

Code = Literal[
    "bad_request",
    "config_mismatch",
    "request_id_reused",
    "too_large",
    "too_slow",
    "overloaded",
    "not_found",
    "not_ready",
    "unavailable",
    "unauthorized",
]


class Refusal(ToolkitError):
    """A request that is not served."""

    def __init__(self, code: Code, message: str) -> None:
        """`message`: what is wrong with it, for the person at the trainer."""
        super().__init__(message)
        self.code: Code = code
