"""Start generation servers on this machine for one run, and stop them with it.

They listen on 127.0.0.1 and require a random key, which only the environment and a file of the user's own hold.
"""

import json
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from posttrain.base.guard import guarded
from posttrain.config.sections.servers import ServerKind, StartConfig
from posttrain.errors import ConfigError
from posttrain.inference.servers import sglang_server, vllm_server
from posttrain.inference.servers.wire import Needs, ServerOutageError

logger = logging.getLogger(__name__)

_HOST = "127.0.0.1"
_RESTARTS = 3
"""How often in a row a server is started again that worked before."""
_GRACE_SECONDS = 20.0
_SHOWN_LINES = 10
_KEY_VARIABLE = "VLLM_API_KEY"


@dataclass
class _Started:
    """A server; `restarts` is how often it may still be started again, which is never before it has worked."""

    url: str
    settings: Path
    log: Path
    process: "subprocess.Popen[bytes]"
    restarts: int = 0


class StartedServers:
    """Child processes that serve the model, until `close`."""

    def __init__(self, kind: ServerKind, config: StartConfig, needs: Needs, folder: Path) -> None:
        """Start the servers; they still have to load the model.

        Args:
            folder: receives a log and a config for each; created with access for the user alone.

        Raises:
            ConfigError: there is no such program, or no free port.
        """
        if shutil.which(config.command[0]) is None:
            raise ConfigError(f"servers.start.command: there is no program {config.command[0]}")
        self.key = secrets.token_urlsafe(32)
        self._kind: ServerKind = kind
        self._config, self._needs = config, needs
        self._servers: list[_Started] = []
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with ExitStack() as stack:
            stack.callback(self.close)
            for number, port in enumerate(_ports(config)):
                file, log = folder / f"server{number}.yaml", folder / f"server{number}.log"
                process = self._process(number, port, file, log, needs.model)
                self._servers.append(_Started(f"http://{_HOST}:{port}", file, log, process))
            stack.pop_all()

    @property
    def urls(self) -> tuple[str, ...]:
        """The servers' addresses."""
        return tuple(server.url for server in self._servers)

    def keep(self, working: Collection[str], weights: str) -> None:
        """Start those again that have ended: with the model of the folder `weights`, if servers get all weights.

        Args:
            working: addresses of those that work.

        Raises:
            ServerOutageError: all have ended, and none may be started again; with the end of a log.
        """
        model = weights if weights and self._needs.weights == "folder" else self._needs.model
        for number, server in enumerate(self._servers):
            if (code := server.process.poll()) is None:
                if server.url in working:
                    server.restarts = _RESTARTS
            elif server.restarts:
                server.restarts -= 1
                logger.warning("the server at %s ended with exit code %d; it is started again", server.url, code)
                port = urlsplit(server.url).port
                assert port is not None
                server.process = self._process(number, port, server.settings, server.log, model)
        codes = [server.process.poll() for server in self._servers]
        if None not in codes:
            first = self._servers[0]
            lines = first.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            raise ServerOutageError(
                f"the server started for this run ended with exit code {codes[0]}; the end of {first.log}:\n  "
                + ("\n  ".join(lines) or "(empty)")
            )

    def close(self) -> None:
        """Stop the servers, together."""
        for server in self._servers:
            server.process.terminate()
        for server in self._servers:
            with suppress(subprocess.TimeoutExpired):
                server.process.wait(_GRACE_SECONDS)
            if server.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(server.process.pid, signal.SIGKILL)
                server.process.wait()
            server.settings.unlink(missing_ok=True)
        self._servers.clear()

    def _process(self, number: int, port: int, file: Path, log: Path, model: str) -> "subprocess.Popen[bytes]":
        settings = _settings(self._kind, replace(self._needs, model=model), port, self.key)
        _write_private(file, json.dumps(settings))  # JSON is YAML
        environment = {**os.environ, **_environment(self._kind, self._needs, self.key)}
        if self._config.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self._config.devices[number]
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as output:
            return subprocess.Popen(
                guarded([*self._config.command, "--config", str(file)]),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the trainer, which then stops the servers
            )


def _settings(kind: ServerKind, needs: Needs, port: int, key: str) -> dict[str, Any]:
    own = {"host": _HOST, "port": port}
    if kind == "sglang-server":  # takes its key from no variable
        return {"model-path": needs.model, **own, **sglang_server.settings(needs), "api-key": key}
    extension = {"worker-extension-cls": vllm_server.WORKER} if needs.weights == "folder" else {}
    return {"model": needs.model, **own, **vllm_server.settings(needs), "load-format": "safetensors", **extension}


def _environment(kind: ServerKind, needs: Needs, key: str) -> Mapping[str, str]:
    """Variables of the server; the guard removes what is in a variable named KEY from the server's output."""
    if kind == "sglang-server":
        return {_KEY_VARIABLE: key}
    path = os.pathsep.join(filter(None, [str(vllm_server.WORKER_FOLDER), os.environ.get("PYTHONPATH")]))
    return {_KEY_VARIABLE: key, "PYTHONPATH": path, "VLLM_NO_USAGE_STATS": "1", **vllm_server.environment(needs)}


def _ports(config: StartConfig) -> list[int]:
    """A free port for each server."""
    if config.port:
        return [config.port + number for number in range(config.count)]
    with ExitStack() as stack:
        try:
            listeners = [stack.enter_context(socket.create_server((_HOST, 0))) for _ in range(config.count)]
        except OSError as error:
            raise ConfigError(f"servers.start: there is no free port: {error}") from None
        return [listener.getsockname()[1] for listener in listeners]


def _write_private(file: Path, text: str) -> None:
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as output:
        output.write(text)
