"""Config of who answers: a model of a training config, or an OpenAI-compatible server."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator

from posttrain.config.keys import is_secret
from posttrain.config.sections.servers import ServerUrl, is_loopback
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine, VariableName

Weights = Literal["auto", "merged", "adapter", "base"]


class TrainedModelConfig(StrictModel):
    """The model of a training config."""

    config: ConfigPath
    """The config that the model is trained with, or the `config.yaml` in a run's folder."""

    weights: Weights = "auto"
    """`base` is the model before training, `merged` the output of toolkit-merge, `adapter` what training exported;
    `auto` takes the merged model if it is up to date, or else what training exported."""

    checkpoint: str | None = None
    """Step of a checkpoint, or `latest`; by default what training exported."""

    run_name: OneLine | None = None
    """Name of the run, if it is not the config's."""

    model_index: int | None = Field(default=None, ge=0)
    """Which of the config's `models`, counted from 0."""

    @model_validator(mode="after")
    def _base_has_no_checkpoints(self) -> "TrainedModelConfig":
        if self.weights == "base" and self.checkpoint is not None:
            raise ValueError("weights: base is the model before training, which has no checkpoints; drop one of them")
        return self


class EndpointConfig(StrictModel):
    """A model behind an OpenAI-compatible server."""

    url: ServerUrl | Annotated[tuple[ServerUrl, ...], Field(min_length=1)]
    """Address of the server with its version, such as `http://127.0.0.1:8000/v1`, or a list of those of several servers
    with the same model, which share the requests; one that fails is left out until it answers again."""

    model: OneLine = Field(min_length=1)
    """Name of the model there."""

    token_env: VariableName | None = None
    """Environment variable that holds the server's key, if it requires one; never the key itself."""

    request_seconds: float = Field(default=600.0, gt=0)
    """How long the server may take for one answer."""

    retries: int = Field(default=5, ge=0, le=100)
    """How often a request is repeated that got no usable answer, e.g. because the server is busy; with several servers
    once more for each further one."""

    concurrency: int = Field(default=8, ge=1, le=1000)
    """Requests in flight at each server."""

    token_limit: int | None = Field(default=None, ge=1)
    """Stop once the answers have cost this many tokens, prompts included, as the server counts them."""

    request: dict[str, JsonValue] = Field(default_factory=dict)
    """Further fields of each request, such as `{reasoning_effort: low}`."""

    insecure_network: bool = False
    """Allow a key to be sent to another machine without TLS, where anyone on that network can read it."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of all servers."""
        return (self.url,) if isinstance(self.url, str) else self.url

    @property
    def place(self) -> str:
        """The servers, for messages."""
        return ", ".join(self.urls)

    @model_validator(mode="after")
    def _key_is_safe(self) -> "EndpointConfig":
        plain = [url for url in self.urls if url.startswith("http:") and not is_loopback(url)]
        if self.token_env and plain and not self.insecure_network:
            raise ValueError("the key would be sent without TLS: use https, or say insecure_network: true")
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("url: names a server twice")
        if named := [key for key in self.request if is_secret((key,))]:
            raise ValueError(f"request: {named[0]} is a secret, which must not be in a config; use token_env")
        return self


def _kind(value: Any) -> str:
    return (
        "endpoint" if isinstance(value, EndpointConfig) or (isinstance(value, dict) and "url" in value) else "trained"
    )


AnswererConfig = Annotated[
    Annotated[TrainedModelConfig, Tag("trained")] | Annotated[EndpointConfig, Tag("endpoint")], Discriminator(_kind)
]
"""A model of a training config, or with `url` a server."""
