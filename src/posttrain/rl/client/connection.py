"""The connection of a run to its dataserver, which may be started for it."""

import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from posttrain.base.processes import is_main_process, process_count, process_rank
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError, ServerError, ToolkitError
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.handshake import handshake
from posttrain.rl.client.local_server import LocalServer
from posttrain.rl.config.rl import DataserverSection
from posttrain.runs.directory import RunDirectory


@dataclass(frozen=True)
class ServerRecord:
    """What a run keeps of its dataserver, so that it is the same run for it after a resume.

    Attributes:
        run_id: the run's name at the dataserver.
        config_id: hash of the server's config, data and graders.
    """

    run_id: str
    config_id: str


@dataclass(frozen=True)
class Connection:
    """A client that has shaken hands, what the server said of itself, and what is to be kept of both."""

    client: DataserverClient
    meta: Meta
    record: ServerRecord


@contextmanager
def connected(section: DataserverSection, run: RunDirectory, *, resume: bool) -> Iterator[Connection]:
    """Connect every process of a run to one dataserver, and end it afterwards if it was started here.

    Raises:
        ConfigError, DataError: the server's config is wrong, or it is no longer the one that the run began with.
        ServerError: the server cannot be reached.
    """
    earlier = _read_record(run) if resume else None
    with ExitStack() as stack:
        server = None
        if section.config is not None and is_main_process():
            run.path.parent.mkdir(parents=True, exist_ok=True)
            server = LocalServer(section.config, run.path.with_name(f"{run.path.name}.dataserver.log"))
        url, run_id, main_process = _shared(stack, server, section.url, earlier)
        client = stack.enter_context(
            DataserverClient(
                url,
                token=_token(section),
                run_id=run_id,
                rank=process_rank(),
                retry_seconds=section.retry_seconds,
                check=_check(section, server, main_process),
            )
        )
        meta = handshake(client, config_id=earlier.config_id if earlier else None, wait_seconds=section.retry_seconds)
        yield Connection(client, meta, ServerRecord(run_id, meta.config_id))


def write_record(run: RunDirectory, record: ServerRecord) -> None:
    """Keep it in the run's folder."""
    run.write_json(run.path / "dataserver.json", asdict(record))


def _read_record(run: RunDirectory) -> ServerRecord | None:
    path = run.path / "dataserver.json"
    return ServerRecord(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _check(section: DataserverSection, server: LocalServer | None, main_process: int) -> Callable[[], None] | None:
    """What ends the waiting for a server that does not answer: the end of one that was started for this run.

    It ends with the main process, which alone may start it again.
    """
    if section.config is None:
        return None
    return server.require_running if server is not None else partial(_require_process, main_process)


def _require_process(pid: int) -> None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        raise ServerError("the dataserver ended with the run's main process, which had started it") from None


def _shared(
    stack: ExitStack, server: LocalServer | None, url: str | None, earlier: ServerRecord | None
) -> tuple[str, str, int]:
    """The server's address, the run's name there, and the main process, which decides and tells the others."""
    error: ToolkitError | None = None
    if is_main_process():
        try:
            url = stack.enter_context(server).url if server is not None else url
        except ToolkitError as failure:
            error = failure
    run_id = earlier.run_id if earlier else secrets.token_hex(8)
    decided: list[Any] = [url, run_id, str(error) if error else "", os.getpid()]
    if process_count() > 1:
        import torch
        from accelerate import PartialState
        from accelerate.utils import broadcast_object_list

        # As the trainer will have it. Without `cpu` several processes on a CPU would not find each other.
        PartialState(cpu=not torch.cuda.is_available())
        broadcast_object_list(decided)
    if error is not None:
        raise error
    if decided[2] or decided[0] is None or decided[1] is None:
        raise ServerError(f"the dataserver could not be started: {decided[2]}")
    return decided[0], decided[1], decided[3]


def _token(section: DataserverSection) -> str | None:
    if section.token_env is None:
        return None
    token = os.environ.get(section.token_env)
    if not token:
        raise ConfigError(f"dataserver.token_env: the environment variable {section.token_env} is not set")
    return token
