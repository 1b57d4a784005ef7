"""Connect a run to its dataserver, and start one if the config says so."""

import json
import logging
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from posttrain.base.processes import is_main_process, on_one_machine, process_count, process_rank
from posttrain.dataserver.schemas import Meta
from posttrain.errors import ConfigError, ServerError, ToolkitError
from posttrain.rl.client.client import DataserverClient
from posttrain.rl.client.local_server import LocalServer
from posttrain.rl.config import DataserverSection
from posttrain.runs.directory import RunDirectory

if TYPE_CHECKING:
    from posttrain.rl.rollout.store.recording import Recording

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerRecord:
    """What a run records about its dataserver, so that the server takes a resumed run for the same run.

    Attributes:
        run_id: the run's name at the dataserver.
        config_id: hash of the server's config, data and graders.
    """

    run_id: str
    config_id: str


@dataclass(frozen=True)
class Connection:
    """A client after the handshake, the server's description of itself, and the record to keep.

    Attributes:
        recording: generations to train on in the place of the server's prompts and grades.
    """

    client: DataserverClient
    meta: Meta
    record: ServerRecord
    recording: "Recording | None" = None


@contextmanager
def connected(section: DataserverSection, run: RunDirectory, *, resume: bool) -> Iterator[Connection]:
    """Connect every process of a run to one dataserver; a server started here is stopped at the end of the block.

    Raises:
        ConfigError, DataError: the server's config is wrong, or it is no longer the one that the run began with; or the
            processes are on several machines, and the server would be started on one.
        ServerError: the server cannot be reached.
    """
    if section.config is not None and not on_one_machine():
        raise ConfigError(
            "dataserver.config: the run would start a dataserver that other machines cannot reach; start it by "
            "toolkit-rl-dataserver, and set dataserver.url in the place of config"
        )
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


def handshake(client: DataserverClient, *, config_id: str | None = None, wait_seconds: float = 300.0) -> Meta:
    """Wait until the server is ready, and accept only one config from then on.

    Args:
        config_id: the resumed run's; None takes the server's own.
        wait_seconds: how long to wait for a server that is not up yet, or still checks its gold answers.

    Raises:
        ConfigError: what answers at that address is not a dataserver, or the token is wrong.
        ServerError: the server is not ready in time, speaks another protocol, or has another config.
    """
    if config_id is not None:
        client.expect(config_id)
    meta = client.connect(wait_seconds)
    exposed = [name for name, sandbox in meta.sandboxes.items() if sandbox == "rlimits"]
    if exposed:
        logger.warning(
            "the dataserver's graders %s run programs from completions with resource limits only (sandbox: rlimits)",
            ", ".join(exposed),
        )
    return meta


@contextmanager
def temporary_connection(section: DataserverSection, *, retry_seconds: float | None = None) -> Iterator[Connection]:
    """A connection under a run name of its own; a server started for it logs and journals to a temporary folder.

    Args:
        retry_seconds: how long a request is repeated, instead of the section's own.

    Raises:
        ConfigError, DataError: the server's config is wrong.
        ServerError: the server cannot be reached.
    """
    with ExitStack() as stack:
        aside = Path(stack.enter_context(TemporaryDirectory(prefix="posttrain-toolkit-")))
        changes: dict[str, object] = {} if retry_seconds is None else {"retry_seconds": retry_seconds}
        if section.config is not None:
            # The grades of a visit belong to no run, and the configured journal may be in use by a run's server.
            journal = (f"journal.path={aside / 'journal.sqlite'}", "journal.url=null")
            server = stack.enter_context(LocalServer(section.config, aside / "dataserver.log", journal))
            changes |= {"config": None, "url": server.url}
        visited = section.model_copy(update=changes)
        yield stack.enter_context(connected(visited, RunDirectory(aside / "visit"), resume=False))


def write_record(run: RunDirectory, record: ServerRecord) -> None:
    """Write the record to the run directory."""
    run.write_json(run.path / "dataserver.json", asdict(record))


def _read_record(run: RunDirectory) -> ServerRecord | None:
    path = run.path / "dataserver.json"
    return ServerRecord(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _check(section: DataserverSection, server: LocalServer | None, main_process: int) -> Callable[[], None] | None:
    """A check that ends the retries once a server started for this run is gone; None if the run started none.

    In other processes it watches the main process: the server ends with it, and only it may restart the server.
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
    """The server's address, the run's name there and the main process's id, broadcast by the main process."""
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

        # As in the trainer. Without `cpu`, several processes on a CPU would not find each other.
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
