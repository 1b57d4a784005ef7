"""Open the servers that a config names as one rollout engine."""

import asyncio
import os
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from posttrain.base.http import PassingError
from posttrain.config.sections.servers import ServerKind, ServersConfig, WeightsSent
from posttrain.errors import ConfigError
from posttrain.inference.servers.pool import ServerPool
from posttrain.inference.servers.sglang_server import SglangServer
from posttrain.inference.servers.start import StartedServers
from posttrain.inference.servers.vllm_server import VllmServer
from posttrain.inference.servers.wire import Needs, Server

_SERVERS = {"vllm-server": VllmServer, "sglang-server": SglangServer}


def weights_sent(kind: ServerKind, config: ServersConfig, adapter_rank: int) -> WeightsSent:
    """`servers.weights` with `auto` resolved: the adapter alone if there is one and the servers take it.

    Args:
        adapter_rank: of the adapter in training, if vLLM can use it as it is; else 0.

    Raises:
        ConfigError: the config wants adapters, but there is none, or the servers take none.
    """
    able = kind == "vllm-server" and adapter_rank > 0
    if config.weights == "auto":
        return "adapter" if able else "folder"
    if config.weights == "adapter" and not able:
        why = "there is no adapter that it can use as it is" if kind == "vllm-server" else "SGLang takes none here"
        raise ConfigError(f"servers.weights: adapter is not possible ({why}); use folder or auto")
    return config.weights


def open_server_engine(kind: ServerKind, config: ServersConfig, needs: Needs, folder: Path) -> ServerPool:
    """Start or reach the servers, check each, and return them as one engine; `close` it.

    Args:
        needs: with the rank of the adapter in training if vLLM can use it as it is; how weights are sent and how long
            requests may take is set from the config.
        folder: for logs and private files of servers that are started here.

    Raises:
        ConfigError: a server lacks what the run needs; the message has the command that would be right. Or the key's
            variable is not set.
        ServerError: a server does not answer in time, or its answers cannot be trained on.
    """
    needs = _with_limits(kind, config, needs)
    urls, key, keep, patience = config.urls, _key(config), _leave, config.retry_seconds
    resources = ExitStack()
    try:
        if config.start is not None:
            started = StartedServers(kind, config.start, needs, folder)
            resources.callback(started.close)
            urls, key, keep, patience = started.urls, started.key, started.keep, config.start.start_seconds
        servers = {url: _SERVERS[kind](url, key, needs) for url in urls}
        pool = ServerPool(servers, needs, config, resources, keep=keep)
        pool.connect(patience)
    except BaseException:
        resources.close()
        raise
    return pool


def unanswered(kind: ServerKind, config: ServersConfig, needs: Needs) -> list[str]:
    """Ask each server that runs already, once, whether it has the options that a run needs.

    Returns:
        Why each of the others could not be asked.

    Raises:
        ConfigError: a server lacks what the run needs; the message has the command that would be right. Or the key's
            variable is not set.
        ServerError: a server refuses to tell.
    """
    needs, key = _with_limits(kind, config, needs), _key(config)
    return asyncio.run(_all_unanswered([_SERVERS[kind](url, key, needs) for url in config.urls]))


async def _all_unanswered(servers: Sequence[Server]) -> list[str]:
    faults: list[str] = []
    try:
        for server in servers:
            try:
                await server.check()
            except PassingError as error:
                faults.append(str(error))
    finally:
        for server in servers:
            await server.close()
    return faults


def _with_limits(kind: ServerKind, config: ServersConfig, needs: Needs) -> Needs:
    """What a run needs, with how weights are sent and how long requests may take."""
    sent, seconds = weights_sent(kind, config, needs.adapter_rank), config.request_seconds
    return replace(needs, weights=sent, request_seconds=seconds, control_seconds=seconds)


def _leave(working: Collection[str], weights: str) -> None:
    """Servers that others run are theirs to start again."""


def _key(config: ServersConfig) -> str | None:
    if config.token_env is None:
        return None
    key = os.environ.get(config.token_env, "").strip()
    if not key:
        raise ConfigError(f"servers.token_env: the environment variable {config.token_env} is not set")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"servers.token_env: the key in {config.token_env} contains characters that no header can")
    return key
