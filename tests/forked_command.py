"""Start the toolkit's commands as forks of a process that has imported what they import, which saves seconds each.

Such a command is an independent process otherwise. It has the environment and the folder of whoever starts it, but for
what Python and its packages read when they start: PYTHONHASHSEED and the number of threads, which is one.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from multiprocessing import forkserver
from pathlib import Path

from faults.forked_process import IMPORTED
from running import BIN

_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def in_processes(processes: int, words: Sequence[str | Path]) -> list[str | Path]:
    """A command line by which `processes` processes run a command together; `ForkedCommand` makes forks of all."""
    launch = ["torchrun", "--standalone", f"--nproc-per-node={processes}", "--start-method=fork", "--run-path"]
    program, *arguments = words
    return [*launch, BIN / program, *arguments] if processes > 1 else list(words)


class ForkedCommand:
    """A running command; its methods are those of `subprocess.Popen`."""

    def __init__(
        self, words: Sequence[str | Path], output: Path, errors: Path, environment: Mapping[str, str] = {}
    ) -> None:
        """Start a command.

        Args:
            output, errors: files, which may be the same, to which what it writes to stdout and stderr is appended.
            environment: variables to set.
        """
        start_server()
        self._process = multiprocessing.get_context("forkserver").Process(
            target=_be_a_command,
            args=([*map(str, words)], output, errors, {**os.environ, **_ENVIRONMENT, **environment}, Path.cwd()),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative if a signal ended the command; None if it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the command has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked command", timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command if it runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the command if it runs."""
        self.send_signal(signal.SIGKILL)


def run_forked(
    words: Sequence[str | Path], *, environment: Mapping[str, str] = {}, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run a command until it ends, as `subprocess.run(…, capture_output=True, text=True)` does."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = (Path(folder, name) for name in ("output", "errors"))
        process = ForkedCommand(words, output, errors, environment)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = (file.read_text() if file.exists() else "" for file in (output, errors))
        return subprocess.CompletedProcess(list(words), code, *said)


def start_server() -> None:
    """Start the process that forks, unless it runs."""
    before = dict(os.environ)
    os.environ.update(_ENVIRONMENT)
    try:
        forkserver.set_forkserver_preload([*IMPORTED, "torch.distributed.run"])
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _be_a_command(words: list[str], output: Path, errors: Path, environment: dict[str, str], folder: Path) -> None:
    gc.freeze()  # or the first garbage collection would copy every page that it visits
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    written = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened = os.open(os.devnull, os.O_RDONLY), os.open(output, written), os.open(errors, written)
    for own, descriptor in enumerate(opened):
        os.dup2(descriptor, own)
        os.close(descriptor)
    sys.stdin = os.fdopen(0)
    program, *arguments = sys.argv = words
    [script] = entry_points(group="console_scripts", name=Path(program).name)
    sys.exit(script.load()(arguments))
