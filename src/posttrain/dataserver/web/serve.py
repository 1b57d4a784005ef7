"""Start the server process, report its address, and stop it without losing acknowledged rewards."""

import asyncio
import errno
import json
import logging
import math
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import uvicorn
from fastapi import FastAPI
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from posttrain.base.console import console
from posttrain.base.files import atomic_write_text
from posttrain.base.secrets import DiscreetFormatter
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.serving import LimitsConfig, ListenConfig
from posttrain.dataserver.grading.golds import Progress as GoldProgress
from posttrain.dataserver.grading.worker import spare_garbage_collector
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.server import DataServer
from posttrain.dataserver.web.app import create_app
from posttrain.dataserver.web.protocol import bounded_protocol
from posttrain.errors import ConfigError

# How much longer than limits.grade_seconds requests in progress may take after SIGTERM.
_GRACE_SECONDS = 10

_SHORTEST_TOKEN = 16


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
    say = set_up_logs(config.listen.log, debug)
    token = _token(config.listen)
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)
    loaded = Loaded.read(config, say)
    listener = _bind(config.listen)
    host = f"[{config.listen.host}]" if ":" in config.listen.host else config.listen.host
    url = f"http://{host}:{listener.getsockname()[1]}"
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

    hosts = ["localhost", "127.0.0.1", "[::1]", host] if config.listen.is_loopback else None
    web_server = _web_server(create_app(server, lifespan, token, hosts), config.limits)

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
            http=bounded_protocol(limits.connections, limits.receive_seconds),
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


def _token(listen: ListenConfig) -> str | None:
    if listen.token_env is None:
        return None
    token = os.environ.get(listen.token_env, "")
    if len(token) < _SHORTEST_TOKEN:
        state = "not set" if not token else f"shorter than {_SHORTEST_TOKEN} characters"
        raise ConfigError(
            f"listen.token_env: the environment variable {listen.token_env} is {state}; set it to a long random "
            f"string, e.g. export {listen.token_env}=$(openssl rand -hex 32)"
        )
    return token


def _bind(listen: ListenConfig) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # from here on a second server is refused, and clients wait
    except OSError as error:
        hint = "; is another server running? --port 0 picks a free port" if error.errno == errno.EADDRINUSE else ""
        raise ConfigError(
            f"cannot listen on {listen.host} port {listen.port}: {error.strerror or error}{hint}"
        ) from None
    return listener


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


_OWN = ("request_id", "status", "ms")


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({key: getattr(record, key) for key in _OWN if hasattr(record, key)})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def set_up_logs(form: Literal["text", "json"], debug: bool) -> Callable[[str], None]:
    """Send the log to the error stream; requests are logged only in JSON or with `debug`.

    Returns the function that reports the start: it writes to the log if that is JSON, else to the console.
    """
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(DiscreetFormatter(JsonLines() if form == "json" else text))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("posttrain").setLevel(logging.DEBUG if debug or form == "json" else logging.WARNING)
    for chatty in ("httpx", "httpcore", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return logging.getLogger("posttrain.dataserver").info if form == "json" else console.print
