"""Start the server process, report its address, and stop it without losing acknowledged rewards."""

import asyncio
import json
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.serving import LimitsConfig
from posttrain.dataserver.grading.golds import Progress as GoldProgress
from posttrain.dataserver.grading.worker import spare_garbage_collector
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.server import DataServer
from posttrain.dataserver.web.app import create_app
from posttrain.dataserver.web.refusals import problem_content
from posttrain.errors import ConfigError
from posttrain.web.connections import bounded_protocol
from posttrain.web.listening import allowed_hosts, bind, token_of, url_of
from posttrain.web.logs import set_up_logs

# How much longer than limits.grade_seconds requests in progress may take after SIGTERM.
_GRACE_SECONDS = 10


def serve(config: DataserverConfig, ready_file: Path | None, debug: bool) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        ready_file: written with url, pid and config_id when the server is ready, and removed at the end. A file that a
            killed server left is removed at the start.

    Raises:
        ConfigError, DataError: config, data, graders or gold answers are wrong, or the address or the journal's file
            cannot be used.
        ServerError: the journal's database cannot be reached.
    """
    say = set_up_logs(config.listen.log, debug, "posttrain.dataserver")
    token = token_of(config.listen, "listen.token_env")
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    loaded = Loaded.read(config, say)
    listener = bind(config.listen)
    url = url_of(config.listen, listener)
    server = DataServer(loaded)
    say(f"toolkit-rl-dataserver listens on {url} (config_id {loaded.meta.config_id})")
    failures: list[Exception] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_get_ready(server, url, ready_file, failures, stop, say))
        try:
            yield
        finally:
            starting.cancel()
            with suppress(asyncio.CancelledError):
                await starting
            await server.close()

    app = create_app(server, lifespan, token, allowed_hosts(config.listen))
    web_server = _web_server(app, config.limits)

    def stop() -> None:
        web_server.should_exit = True

    # uvicorn shuts down gracefully on SIGTERM and then passes the signal on; it may also come before uvicorn runs.
    signal.signal(signal.SIGTERM, lambda *_: stop())
    try:
        web_server.run(sockets=[listener])
    finally:
        if ready_file is not None:
            _retract(ready_file)
    if failures:
        raise failures[0]


def _web_server(app: FastAPI, limits: LimitsConfig) -> uvicorn.Server:
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=bounded_protocol(limits.connections, limits.receive_seconds, problem_content, "limits."),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=math.ceil(limits.grade_seconds) + _GRACE_SECONDS,
            lifespan="on",
        )
    )


async def _get_ready(
    server: DataServer,
    url: str,
    ready_file: Path | None,
    failures: list[Exception],
    stop: Callable[[], None],
    say: Callable[[str], None],
) -> None:
    try:
        with _gold_progress(say) as progress:
            await server.warm_up(progress)
        spare_garbage_collector()
        if ready_file is not None:
            _announce(ready_file, {"url": url, "pid": os.getpid(), "config_id": server.meta.config_id})
        say("ready")
    except Exception as error:  # noqa: BLE001  # whatever it is, a server that can never be ready ends
        failures.append(error)
        stop()


def _announce(ready_file: Path, described: dict[str, str | int]) -> None:
    try:
        atomic_write_text(ready_file, json.dumps(described) + "\n")
    except OSError as error:
        raise ConfigError(f"--ready-file: {ready_file} cannot be written: {error.strerror or error}") from None


def _retract(ready_file: Path) -> None:
    """Remove it, unless it now belongs to another server, e.g. because a trainer was killed and restarted."""
    with suppress(OSError, ValueError, LookupError):
        if json.loads(ready_file.read_text(encoding="utf-8"))["pid"] == os.getpid():
            ready_file.unlink()


@contextmanager
def _gold_progress(say: Callable[[str], None]) -> Iterator[GoldProgress]:
    """Show a bar per data set on a terminal, and print a line when one is done."""
    bars = Progress(
        TextColumn("checking golds: {task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks: dict[str, TaskID] = {}

    def show(dataset: str, done: int, rows: int) -> None:
        if dataset not in tasks:
            tasks[dataset] = bars.add_task(dataset, total=rows)
        bars.update(tasks[dataset], completed=done)
        if done == rows:
            say(f"golds of {dataset}: {rows:,} rows can be graded")

    with bars:
        yield show
