"""Config and secrets shared by graders that call a service.

They run on the server's event loop and not in a worker process, because they wait rather than compute. A failure on one
completion must not cost another one its score, so failures are values here and not exceptions.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, JsonValue, field_validator

from posttrain.base.secrets import SHORTEST_SECRET, hidden
from posttrain.config.keys import KeyPath, dotted, is_secret
from posttrain.config.values import VariableName
from posttrain.dataserver.graders.base import Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError

if TYPE_CHECKING:
    import httpx

    from posttrain.dataserver.graders.calls import Caller


# A language model's token, such as <|im_end|>, is not a secret whatever its key is called; nor is a short text.
_MARKER = re.compile(r"<.*>|\[.*\]")

# All spellings of this machine; `all://` stands for http and https.
_LOOPBACK = ("all://localhost", "all://127.0.0.1", "all://[::1]")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a completion has no score, for whoever reviews it later."""

    status: Literal["abstain", "error"]
    """abstain: the service cannot judge this completion; error: the service or the connection to it failed."""

    detail: str


Outcome = Score | Failure


class CallFailedError(Exception):
    """A call got no usable reply. The message names the service and contains neither its reply nor a token."""


class RemoteGrader(Grader):
    """Base of the graders that call a service."""

    url: str
    """URL of the service, beginning with http:// or https://."""

    token_env: VariableName | None = None
    """Name of the environment variable that holds the service's bearer token, in capitals; never the token itself."""

    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    """Time limit for one call, from its first byte to its last; each retry has as long again."""

    retries: int = Field(default=2, ge=0, le=10)
    """How often to repeat a call after a timeout, a broken connection, or a response with 429, 502, 503 or 504."""

    max_concurrency: int = Field(default=8, ge=1, le=1000)
    """Maximum number of calls in flight."""

    breaker_failures: int = Field(default=5, ge=1)
    """After this many failed calls in a row the service is left alone, and completions get an error immediately."""

    breaker_seconds: float = Field(default=30.0, gt=0)
    """How long it is left alone; then a single call checks whether it is back."""

    @field_validator("url")
    @classmethod
    def _is_a_web_address(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_whole = False
        if not is_whole or not url.isprintable() or " " in url:
            raise ValueError("the url must begin with http:// or https:// and name a host")
        if "@" in url:
            raise ValueError("the url contains a user name or password; put a token into the environment (token_env)")
        named = [name for name, _ in parse_qsl(urlsplit(url).query) if is_secret((name,))]
        if named:
            raise ValueError(f"the url contains a secret ({named[0]}); put it into the environment (token_env)")
        return url

    @property
    def place(self) -> str:
        """The service's URL for messages: without the part after `?`, where some services expect a key."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{parts.path}"

    def token(self) -> str | None:
        """The bearer token, if the service needs one.

        Raises:
            ConfigError: the variable is not set, or contains white space, non-ASCII or unprintable characters.
        """
        if self.token_env is None:
            return None
        token = os.environ.get(self.token_env, "")
        if not token:
            raise ConfigError(f"the environment variable {self.token_env} is not set; {self.place} requires a token")
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigError(f"the environment variable {self.token_env} contains white space or unusual characters")
        return token

    def hide_token(self, text: str) -> str:
        """The text without the token, in whatever encoding a service sends it back."""
        return hidden(text, [os.environ.get(self.token_env or "", "")])

    def load(self) -> None:
        """Check that the token is available; ConfigError as in `token`."""
        self.token()

    def caller(self, client: "httpx.AsyncClient") -> "Caller":
        """The object that calls the service through this client."""
        from posttrain.dataserver.graders.calls import caller

        return caller(self, client)

    async def score_all(self, items: Sequence[GradeInput], client: "httpx.AsyncClient") -> list[Outcome]:
        """Score completions: one outcome for each, in the same order. Never raises because of an item."""
        raise NotImplementedError


def require_no_secret(value: JsonValue, instead: str) -> None:
    """Raise ValueError if free-form data has a value named like a secret; `instead` says where to put it."""
    place = place_of_secret(value)
    if place is not None:
        raise ValueError(f"{place} contains a secret, which must not be in a config; {instead}")


def place_of_secret(value: JsonValue, path: KeyPath = ()) -> str | None:
    """The key of the first text in free-form data that is named like a secret and could be one; else None."""
    if isinstance(value, str):
        name = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
        is_one = is_secret((name,)) and len(value) >= SHORTEST_SECRET and not _MARKER.fullmatch(value)
        return dotted(path) if is_one else None
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in items if (found := place_of_secret(item, (*path, key)))), None)


def new_client() -> "httpx.AsyncClient":
    """A client for `score_all` that takes proxies from the environment, but connects to this machine directly."""
    import httpx

    # Each grader limits the number and time of its own calls. A mount without a transport connects without a proxy.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncClient(limits=limits, timeout=None, mounts=dict.fromkeys(_LOOPBACK))
