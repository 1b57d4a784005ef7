"""What toolkit-serve bounds, and where it listens."""

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import Field, ValidationError

from posttrain.config.errors import find_problems
from posttrain.config.keys import dotted
from posttrain.config.load import apply_override, parse_override
from posttrain.config.sections.listen import ListenConfig
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError


class ServeLimits(StrictModel):
    """How much a request may ask for, and how much may be asked at once."""

    queue: int = Field(default=256, ge=1)
    """Maximum number of answers that wait for the model; beyond it, requests get a 429."""

    n: int = Field(default=16, ge=1)
    """Maximum number of answers to one request: its prompts times its `n`."""

    seconds: float = Field(default=600.0, gt=0)
    """Time limit for a request, from its arrival; then it gets a 504, or the end of its stream."""

    body_mb: float = Field(default=8.0, gt=0)
    """Maximum size of a request's body, in MiB, before and after decompression."""

    receive_seconds: float = Field(default=60.0, gt=0)
    """Time limit for receiving a request, after which its connection is closed."""

    connections: int = Field(default=1000, ge=1)
    """Maximum number of open connections; one more gets a 503 and is closed."""

    loaded: int = Field(default=1, ge=1)
    """How many models stay in memory; one more replaces that which was not used for the longest time."""


class ServeConfig(StrictModel):
    """Address and limits of the server."""

    listen: ListenConfig = ListenConfig(port=8000)
    """Address, token and log."""

    limits: ServeLimits = ServeLimits()
    """Maximum sizes, numbers and times."""


def serve_config(host: str, port: int, token_env: str | None, limits: Sequence[str]) -> ServeConfig:
    """The settings of a command line; `limits` are written as `queue=64`.

    Raises:
        ConfigError: one of them is wrong, or other machines could ask without a token.
    """
    data: dict = {"listen": {"host": host, "port": port, "token_env": token_env}, "limits": {}}
    for text in limits:
        name = text.partition("=")[0].strip()
        if name not in ServeLimits.model_fields:
            near = get_close_matches(name, ServeLimits.model_fields, n=1)
            known = f"did you mean {near[0]}?" if near else f"there are {', '.join(ServeLimits.model_fields)}"
            raise ConfigError(f"--limit {text[:60]}: there is no such limit; {known}")
        apply_override(data, parse_override(f"limits.{text}"))
    try:
        return ServeConfig.model_validate(data)
    except ValidationError as error:
        problems = find_problems(error, ServeConfig, data)
        raise ConfigError("; ".join(f"{_option(dotted(each.path))}: {each.text}" for each in problems)) from None


def _option(path: str) -> str:
    """A setting's name on the command line."""
    section, _, name = path.partition(".")
    return f"--limit {name}" if section == "limits" else f"--{(name or 'host').replace('_', '-')}"
