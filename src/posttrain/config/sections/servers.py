"""Config section `servers`: the vLLM or SGLang servers that generate for a run."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine, VariableName

ServerKind = Literal["vllm-server", "sglang-server"]
WeightsSent = Literal["adapter", "folder", "off"]


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 80) > 0
    except ValueError:
        usable = False
    if "@" in url or "?" in url:
        raise ValueError("the address contains more than host, port and path; put the key into token_env")
    if not usable:
        raise ValueError("should be the address of a server, such as http://127.0.0.1:8000")
    return url.rstrip("/")


ServerUrl = Annotated[str, AfterValidator(_address)]


def is_loopback(url: str) -> bool:
    """Whether the address can only be this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StartConfig(StrictModel):
    """Servers that the run starts on this machine and stops at its end."""

    command: tuple[OneLine, ...] = Field(min_length=1)
    """The server's program and any options of your own, such as `[/opt/vllm/bin/vllm, serve]` or
    `[/opt/sglang/bin/python, -m, sglang.launch_server]`; what the run needs is added."""

    count: int = Field(default=1, ge=1)
    """Number of servers."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port of the first server, the others follow; 0 takes free ones."""

    devices: tuple[OneLine, ...] = ()
    """CUDA devices of each server, such as `["1", "2,3"]`; by default each sees all."""

    start_seconds: float = Field(default=900.0, gt=0)
    """How long the servers may take to load the model."""

    @model_validator(mode="after")
    def _fits(self) -> "StartConfig":
        if self.devices and len(self.devices) != self.count:
            raise ValueError(f"devices: has {len(self.devices)} entries for {self.count} servers; give one for each")
        if self.port + self.count > 65536:
            raise ValueError(f"port: {self.port} leaves no ports for {self.count} servers")
        return self


class ServersConfig(StrictModel):
    """Servers that generate, and how they get the weights."""

    urls: tuple[ServerUrl, ...] = ()
    """Addresses of servers that are already running, such as `[http://127.0.0.1:8000]`."""

    start: StartConfig | None = None
    """Or: servers to start with the run."""

    token_env: VariableName | None = None
    """Environment variable that holds the servers' key, if they require one."""

    weights: Literal["auto"] | WeightsSent = "auto"
    """What the servers receive: the adapter alone, a folder with all weights, or nothing (`off`, for a model that is
    not trained); `auto` sends the adapter if there is one and the servers take it."""

    folder: ConfigPath | None = None
    """A folder that this machine and the servers share: weights are copied there. By default the servers read them
    where the run writes them, which needs servers on this machine."""

    folder_on_server: str | None = Field(default=None, min_length=1)
    """The path of that folder on the servers, if it is another one there."""

    request_seconds: float = Field(default=600.0, gt=0)
    """How long a server may take for one completion."""

    retry_seconds: float = Field(default=300.0, gt=0)
    """How long to go on with fewer than `min_servers` servers, trying to reach the others, before the run fails."""

    min_servers: int = Field(default=1, ge=1)
    """How many servers must work; the others may fail and come back."""

    insecure_network: bool = False
    """Allow a server on another machine that is reached without TLS, or that takes weights without a key: anyone on
    that network can then read what is sent, or replace the model."""

    @field_validator("folder_on_server")
    @classmethod
    def _is_a_place(cls, place: str | None, info: ValidationInfo) -> str | None:
        if place is not None and info.data.get("folder") is None:
            raise ValueError("folder_on_server: needs folder, the path of the same folder on this machine")
        if place is not None and not Path(place).is_absolute():
            raise ValueError("folder_on_server: should begin with a slash")
        return place

    @model_validator(mode="after")
    def _servers_can_be_reached(self) -> "ServersConfig":
        if bool(self.urls) == (self.start is not None):
            raise ValueError("give either `urls` (servers that run already) or `start` (servers to start), not both")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("urls: names a server twice")
        if self.start is not None and self.token_env is not None:
            raise ValueError("token_env: servers that the run starts get a random key of their own; leave it out")
        count = len(self.urls) if self.start is None else self.start.count
        if self.min_servers > count:
            raise ValueError(f"min_servers: {self.min_servers} is more than the number of servers, {count}")
        return self

    @model_validator(mode="after")
    def _network_is_safe(self) -> "ServersConfig":
        far = [url for url in self.urls if not is_loopback(url)]
        if far and self.token_env is None:
            raise ValueError(f"{far[0]} is another machine: start its server with a key, and name it by token_env")
        plain = [url for url in far if url.startswith("http:")]
        if plain and not self.insecure_network:
            raise ValueError(
                f"{plain[0]} is another machine, without TLS: use https, or a tunnel to a port of this machine, or say "
                "insecure_network: true"
            )
        if far and self.folder is None and self.weights != "off":
            raise ValueError(f"{far[0]} is another machine: name a folder that it shares with this one (folder)")
        return self
