"""Runs whose completions come from contract servers with the tiny model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from inference.servers.causal_model import CausalModel
from inference.servers.contract_server import ContractServer
from rl.rl_runs import write_run

Serve = Callable[..., ContractServer]


@contextmanager
def serving(model: Path) -> Iterator[Serve]:
    """`serve(kind, **options)` runs a contract server with `model` until the block ends."""
    servers: list[ContractServer] = []

    def serve(kind: str = "vllm-server", **options: Any) -> ContractServer:
        servers.append(ContractServer(kind, model, read=CausalModel, **options))
        return servers[-1]

    try:
        yield serve
    finally:
        for server in servers:
            with suppress(OSError):
                server.kill()


def write(folder: Path, model: Path, servers: dict[str, Any], *, engine: str = "vllm-server", **changes: Any) -> Path:
    """Write a run of 8 steps in float32 that has these servers; `changes` are to its other sections."""
    rollout = {
        "engine": engine,
        "max_prompt_tokens": 64,
        "servers": {"weights": "folder", "retry_seconds": 3.0, **servers},
        **changes.pop("rollout", {}),
    }
    return write_run(folder, model, model={"dtype": "float32"}, rollout=rollout, **changes)
