"""Config section `listen`: where a server listens, who may ask it, and what it logs."""

import ipaddress
from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel
from posttrain.config.values import VariableName


class ListenConfig(StrictModel):
    """Address, token and log."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Any address other than this machine's own requires a token."""

    port: int = Field(default=9000, ge=0, le=65535)
    """Port to listen on; 0 picks a free one and reports it."""

    token_env: VariableName | None = None
    """Name of the environment variable, in capitals, that holds the bearer token required of every request."""

    log: Literal["text", "json"] = "text"
    """Format of the log lines."""

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @model_validator(mode="after")
    def _token_where_others_listen(self) -> "ListenConfig":
        if not self.is_loopback and self.token_env is None:
            raise ValueError(
                f"on host {self.host} other machines can reach this server; set token_env to the name of an "
                "environment variable that holds a token"
            )
        return self
