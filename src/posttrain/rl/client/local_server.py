"""Run a dataserver as a child process of the trainer: start it, restart it, and stop it with the trainer."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from posttrain.base.console import console
from posttrain.errors import ConfigError, ServerError, ToolkitError

# Nobody else is meant to reach the server, so it needs no token; later overrides win.
_PRIVATE = ("listen.host=127.0.0.1", "listen.token_env=null")

_SECONDS_BETWEEN_LOOKS = 0.05
_SECONDS_BETWEEN_LINES = 10.0
_WINDOW_SECONDS = 600.0
_LONGEST_PAUSE_SECONDS = 10.0
_SHOWN_LINES = 10


class LocalServer:
    """A `toolkit-rl-dataserver` child process, which runs while this context manager is entered.

    If it dies meanwhile, it is restarted on the same port, so that a client that repeats its requests hardly notices.
    Only one process of a run starts a server; the others get its `url`.
    """

    def __init__(
        self,
        config: Path,
        log: Path,
        overrides: Sequence[str] = (),
        *,
        restarts: int = 5,
        grace_seconds: float = 20.0,
        say: Callable[[str], None] = console.print,
    ) -> None:
        """Start nothing yet.

        Args:
            config: the dataserver's config file.
            log: file to which the server's own messages are appended.
            overrides: like `--set`. Unless they say otherwise, the server listens on 127.0.0.1 and needs no token.
            restarts: maximum number of restarts within ten minutes.
            grace_seconds: how long the server may take, at the end, to answer open requests and write its journal.
            say: shows a line to the user: progress of the start, and restarts.
        """
        self._config = config
        self._log = log
        self._ready_file = log.with_name(f"{log.name}.ready.json")
        self._overrides = overrides
        self._restarts = restarts
        self._grace_seconds = grace_seconds
        self._say = say
        self._url = ""
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: ToolkitError | None = None
        self._closing = threading.Event()
        self._starting = threading.Lock()
        self._watcher = threading.Thread(target=self._watch, name="local dataserver", daemon=True)

    def __enter__(self) -> Self:
        """Start the server, and wait until it is ready.

        Raises:
            ConfigError: the server refuses its config or data; the message is its own.
            ServerError: the server exits for another reason.
        """
        try:
            self._start(port=0)
            self._url = self._wait_until_ready()
            self._watcher.start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    @property
    def url(self) -> str:
        """The server's address, which a restart does not change."""
        return self._url

    @property
    def pid(self) -> int:
        """Process id of the current server."""
        assert self._process is not None
        return self._process.pid

    def require_running(self) -> None:
        """Raise ServerError if the server died too often and is not restarted; meant as a client's `check`."""
        if self._failure is not None:
            raise ServerError(str(self._failure))

    def _start(self, port: int) -> None:
        overrides = [word for override in (*_PRIVATE, *self._overrides) for word in ("--set", override)]
        command = [sys.executable, "-P", "-m", "posttrain.rl.client.local_server_process", str(os.getpid())]
        arguments = [str(self._config), "--port", str(port), "--ready-file", str(self._ready_file), *overrides]
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the trainer, which then stops the server
            )

    def _wait_until_ready(self) -> str:
        assert self._process is not None
        begin = told = time.monotonic()
        while (url := self._ready_url(self._process.pid)) is None:
            code = self._process.poll()
            if code is not None:
                raise self._ended(code)
            now = time.monotonic()
            if now - told > _SECONDS_BETWEEN_LINES:
                last = (self._messages().splitlines() or ["no output yet"])[-1]
                self._say(f"waiting for the dataserver, {now - begin:.0f} s: {last}")
                told = now
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        return url

    def _ready_url(self, pid: int) -> str | None:
        try:
            told = json.loads(self._ready_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        # The file may be left over from a server that was killed.
        return told["url"] if told["pid"] == pid else None

    def _watch(self) -> None:
        begun: deque[float] = deque()
        try:
            while self._failure is None:
                code = self._process.wait() if self._process is not None else 0
                if self._closing.is_set():
                    return
                self._start_again(code, begun)
        except OSError as error:
            self._failure = ServerError(f"the dataserver cannot be restarted: {error}")
            self._say(str(self._failure))

    def _start_again(self, code: int, begun: deque[float]) -> None:
        """Restart the server, unless that was done too often; `begun`: times of the recent restarts, in seconds."""
        now = time.monotonic()
        while begun and now - begun[0] > _WINDOW_SECONDS:
            begun.popleft()
        if len(begun) >= self._restarts:
            self._failure = self._ended(code)
            self._say(str(self._failure))
            return
        # The first restart comes at once; repeated ones wait.
        if begun:
            self._closing.wait(min(2.0 ** (len(begun) - 1), _LONGEST_PAUSE_SECONDS))
        begun.append(now)
        with self._starting:
            if not self._closing.is_set():
                self._say(f"the dataserver {_ending(code)}; restart {len(begun)} of at most {self._restarts}")
                self._start(port=int(self._url.rpartition(":")[2]))

    def _ended(self, code: int) -> ToolkitError:
        """The error for a server that ended by itself."""
        text = self._messages()
        _, mark, told = f"\n{text}".rpartition("\nerror: ")
        if mark and code > 0:
            message = f"the dataserver of {self._config}: {told}"
        else:
            last = "\n  ".join(text.splitlines()[-_SHOWN_LINES:]) or "(empty)"
            message = f"the dataserver of {self._config} {_ending(code)}; the end of {self._log}:\n  {last}"
        return ConfigError(message) if code == ConfigError.exit_code else ServerError(message)

    def _messages(self) -> str:
        """The server's output since its last start."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode("utf-8", "replace").strip()

    def _end(self) -> None:
        self._closing.set()
        with self._starting:
            process = self._process
        if process is None:
            return
        try:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(self._grace_seconds)
        finally:
            # Kill at once if a second Ctrl-C interrupts the wait; the grading processes end with the server anyway.
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if self._watcher.is_alive():
                self._watcher.join()
            self._ready_file.unlink(missing_ok=True)


def _ending(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was terminated by a signal ({signal.strsignal(-code)})"
