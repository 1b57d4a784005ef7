"""The reasons for which a server refuses a request, whatever their form on the wire."""

from typing import Literal

from posttrain.errors import ToolkitError

Code = Literal[
    "bad_request",
    "no_substitute",
    "config_mismatch",
    "request_id_reused",
    "too_large",
    "too_slow",
    "overloaded",
    "not_found",
    "not_ready",
    "internal",
    "unavailable",
    "unauthorized",
]


class Refusal(ToolkitError):
    """A request that is refused as a whole; a server's web layer maps each code to an HTTP status."""

    def __init__(self, code: Code, message: str) -> None:
        """`message`: what is wrong with the request, for whoever sent it."""
        super().__init__(message)
        self.code: Code = code
