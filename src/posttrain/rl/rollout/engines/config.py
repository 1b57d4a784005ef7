"""Which engine generates: by name, behind servers, or a class of the user's."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from posttrain.base.user_code import function_digest
from posttrain.config.sections.engines import EngineName, EngineTraits
from posttrain.config.sections.servers import ServersConfig
from posttrain.config.strict import StrictModel
from posttrain.config.values import FunctionPlace
from posttrain.errors import ConfigError
from posttrain.inference.own_engine import own_engine_class

# Options of engines that the trainer runs itself, with the reason why servers have none of them.
_NOT_FOR_SERVERS = {
    "sync": "servers.weights says what servers receive",
    "placement": "servers have processes of their own",
    "threads": "give it to the server, with its command",
    "engine_seconds": "servers.request_seconds and servers.retry_seconds limit how long they are waited for",
    "gpu_memory_utilization": "give it to the server, with its command",
}


class OwnEngine(StrictModel):
    """An engine of your own; its file's content and its options are part of the run's identity."""

    path: FunctionPlace
    """`file.py:Class`, relative to this config file; the class has the methods of examples/own_engine/engine.py."""

    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the class as keyword arguments, besides the model's folder and the ids that end a completion."""


def require_servers_fit(
    engine: EngineName, traits: EngineTraits, servers: ServersConfig | None, given: Mapping[str, Any]
) -> None:
    """Check `rollout.servers` against the engine and the options that only other engines have.

    Args:
        given: the options of `rollout` that differ from their defaults.

    Raises:
        ValueError: they do not fit.
    """
    if not traits.is_server:
        if servers is not None:
            raise ValueError(
                f"servers: given, but engine: {engine} uses none; set engine: vllm-server or sglang-server, or leave "
                "servers out"
            )
        return
    if servers is None:
        raise ValueError(
            f"engine: {engine} needs servers: either urls (that run already) or start (a command to start them)"
        )
    for name, why in _NOT_FOR_SERVERS.items():
        if name in given:
            raise ValueError(f"{name}: {given[name]} is not for engine: {engine}, since {why}; leave it out")
    if servers.weights == "off":
        raise ValueError(
            "servers.weights: off, but completions must come from the model in training; use auto, adapter or folder"
        )
    if servers.weights == "adapter" and engine == "sglang-server":
        raise ValueError("servers.weights: adapter is not possible with SGLang, which gets all weights; use folder")


def check_own_engine(engine: str | OwnEngine) -> None:
    """Raise ConfigError if the engine is the user's, and there is no such class or it lacks a method."""
    if isinstance(engine, OwnEngine):
        try:
            own_engine_class(engine.path)
        except ConfigError as error:
            raise ConfigError(f"rollout.engine: {error}") from error


def engine_digest(engine: str | OwnEngine) -> dict[str, str]:
    """Hash of the file of the user's own engine by its config key; part of a run's identity."""
    key = "rollout.engine.path"
    return {key: function_digest(key, engine.path)} if isinstance(engine, OwnEngine) else {}


def servers_identity(servers: ServersConfig | None) -> dict[str, Any] | None:
    """What may not change for a resumed run: what is sent; where servers are and how long they take is left out."""
    return None if servers is None else {"weights": servers.weights}
