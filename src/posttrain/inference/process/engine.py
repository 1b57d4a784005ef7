"""A rollout engine in a process of its own, which is started again if it dies or does not answer."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Protocol, Self

from posttrain import errors
from posttrain.base.console import console
from posttrain.base.processes import process_count
from posttrain.conversation.masks import TokenRow
from posttrain.errors import ServerError, ToolkitError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.process.messages import (
    Message,
    completion_arrays,
    limit_silence,
    read_completions,
    read_lists,
    receive,
    request_arrays,
    row_arrays,
    send,
)

_ATTEMPTS = 3
_SHOWN_LINES = 10
_END_SECONDS = 5.0
_CLOSED = "the engine was closed"
# Of the trainer's process group; the engine is a process on its own.
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


class Spec(Protocol):
    """Describes an engine; see `specs`."""

    def facts(self, loaded: Path | None) -> dict[str, Any]:
        """The description as JSON can hold it; `loaded` is the folder of the weights loaded last, if any."""
        ...


class EngineProcess:
    """A RolloutEngine behind a pipe; one command at a time.

    If the process dies, or is silent for `seconds`, it is started again with the weights that it had, and gets the same
    command again, together with the completions that it had finished.
    """

    def __init__(
        self,
        log: Path,
        *,
        seconds: float,
        threads: int | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Start nothing yet.

        Args:
            log: receives the process's own output.
            threads: that torch may use in it; None for its default.
            environment: variables to set in it.
        """
        self._log, self._seconds, self._threads = log, seconds, threads
        self._variables = environment
        self._spec: Spec | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log_start = 0
        self._loaded: Message | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # held while the process is replaced

    def open(self, spec: Spec) -> Self:
        """Wait until the engine that `spec` describes is ready, in the process that is there or a new one.

        An engine that was open before is closed. If this fails, the process ends for good.

        Raises:
            ConfigError, ModelError: the engine cannot be opened.
            ServerError: the process died three times in a row, or was closed.
        """
        self._spec, self._loaded = spec, None
        try:
            self._ask(lambda: Message("open", spec.facts(None)))
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_closed(self) -> bool:
        """Whether it was ended for good."""
        return self._is_closed

    @property
    def pid(self) -> int:
        """Process id of the current process."""
        assert self._process is not None
        return self._process.pid

    def load(self, weights: Path | None, version: int) -> None:
        """Take over the weights in the folder `weights`, which must stay until the next call.

        Raises:
            ModelError: they cannot be used.
            ServerError: the process died, or did not answer, three times in a row; also the other methods raise it.
        """
        command = Message("load", {"weights": str(weights), "version": version})
        self._ask(lambda: command)
        self._loaded = command

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """All completions of all requests."""
        finished = finished or FinishedCompletions()

        def command() -> Message:
            arrays = {**request_arrays(requests), **completion_arrays([*finished.of(requests).items()])}
            return Message("complete", {"sampling": asdict(sampling)}, arrays)

        def keep(made: Message) -> None:
            for key, completion in read_completions(made.arrays):
                finished.add(requests, key, completion)

        self._ask(command, keep)
        return finished.of(requests)

    def score(self, ids: Sequence[int]) -> list[float]:
        """log p of each token but the first, in nats, at temperature 1."""
        return self._ask(lambda: Message("score", {"ids": list(ids)})).facts["logprobs"]

    def token_logprobs(self, rows: Sequence[TokenRow]) -> list[list[float]]:
        """For each row log p of its trained tokens, in nats, at temperature 1; the spec's engine must be able to."""
        return read_lists(self._ask(lambda: Message("token_logprobs", arrays=row_arrays(rows))).arrays)

    def close(self) -> None:
        """End the process, and start no other; commands of other threads, and all later ones, fail."""
        with self._lock:
            self._is_closed = True
        self._end()

    def _ask(self, command: Callable[[], Message], heard: Callable[[Message], object] | None = None) -> Message:
        """The answer to a command, which is built anew for each process that gets it; `heard` gets what comes before
        it."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                asked = command()
                if self._process is None:
                    self._start()
                    if asked.kind != "open":
                        self._restore()
                return self._exchange(asked, heard)
            except (EOFError, OSError) as error:
                ending = self._ending(error)
                self._end()
                if self._is_closed:
                    raise ServerError(_CLOSED) from None
                if attempt == _ATTEMPTS:
                    raise ServerError(
                        f"the engine process {ending}, {attempt} times in a row; the end of {self._log}:\n"
                        f"{self._last_lines()}"
                    ) from None
                console.print(f"the engine process {ending}; start {attempt + 1} of at most {_ATTEMPTS}")
        raise AssertionError

    def _restore(self) -> None:
        """Bring a new process to where the last one was."""
        assert self._spec is not None
        weights = None if self._loaded is None else Path(self._loaded.facts["weights"])
        self._exchange(Message("open", self._spec.facts(weights)))
        if self._loaded is not None:
            self._exchange(self._loaded)

    def _exchange(self, command: Message, heard: Callable[[Message], object] | None = None) -> Message:
        connection = self._connection
        if connection is None:  # closed meanwhile
            raise EOFError
        send(connection, command)
        while (answer := receive(connection)).kind == "made":
            assert heard is not None
            heard(answer)
        if answer.kind == "failed":
            made = getattr(errors, answer.facts["error"], ToolkitError)
            raise made(answer.facts["message"])
        return answer

    def _start(self) -> None:
        ours, theirs = Pipe()
        limit_silence(ours, self._seconds)
        command = [sys.executable, "-P", "-m", "posttrain.inference.process.worker"]
        with self._lock, self._log.open("ab") as log, theirs:
            if self._is_closed:
                ours.close()
                raise ServerError(_CLOSED)
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            self._connection = ours

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        if process_count() > 1:  # a device for each rank, which its engine shares
            here = int(os.environ.get("LOCAL_RANK", "0"))
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            kept["CUDA_VISIBLE_DEVICES"] = visible.split(",")[here] if visible else str(here)
        if self._threads is not None:
            kept |= {"OMP_NUM_THREADS": str(self._threads), "MKL_NUM_THREADS": str(self._threads)}
        return {**kept, **self._variables}

    def _ending(self, error: BaseException) -> str:
        process = self._process  # None once it is closed
        if isinstance(error, TimeoutError):
            return f"did not answer for {self._seconds:g} s (rollout.engine_seconds)"
        if process is None:
            return str(error)
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_END_SECONDS)
            return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return "closed its connection"

    def _last_lines(self) -> str:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
        return "\n".join(f"  {line}" for line in lines[-_SHOWN_LINES:]) or "  (empty)"

    def _end(self) -> None:
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = None
        if process is not None:
            process.kill()
            process.wait()
        if connection is not None:
            connection.close()
