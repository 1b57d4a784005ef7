"""Run a step's command in a process of its own, and pass on its output and the signals that end it."""

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

from posttrain.errors import RunError, RunInterrupted

_CALL = "from posttrain.cli.{module} import main; main()"
_ERROR = "error: "
_PR_SET_PDEATHSIG = 1  # prctl(2)


def call(command: Sequence[str], launch: Sequence[str] = ()) -> None:
    """Run a command of the toolkit, or after `--` any program, until it ends.

    Args:
        launch: words before the command, such as torchrun's.

    Raises:
        RunError: it failed; the message is its own, if it had one.
        RunInterrupted: Ctrl-C or SIGTERM ended it.
    """
    words = command_line(command, launch)
    with _signals_passed_on() as (children, asked):
        try:
            process = subprocess.Popen(words, stderr=subprocess.PIPE, preexec_fn=_end_with_parent)
        except OSError as error:
            raise RunError(f"{words[0]} cannot be started: {error.strerror or error}") from None
        children.append(process)
        lines: list[str] = []
        assert process.stderr is not None
        copying = threading.Thread(target=_pass_on, args=(process.stderr, lines), daemon=True)
        copying.start()
        code = process.wait()
        copying.join(5)
    if asked:
        raise RunInterrupted("stopped; the same command goes on", 128 + asked[0])
    if code:
        raise RunError(_message(lines) or f"{shown(command).split()[0]} ended with exit code {code}")


def command_line(command: Sequence[str], launch: Sequence[str] = ()) -> list[str]:
    """The words of a process that runs a command."""
    if command[0] == "--":
        return [*launch, *command[1:]]
    if launch:  # such as torchrun, which takes a script
        return [*launch, str(Path(sys.executable).with_name(f"toolkit-{command[0]}")), *command[1:]]
    return [sys.executable, "-c", _CALL.format(module=command[0].replace("-", "_")), *command[1:]]


def shown(command: Sequence[str], launch: Sequence[str] = ()) -> str:
    """A command as a user would type it."""
    words = command[1:] if command[0] == "--" else [f"toolkit-{command[0]}", *command[1:]]
    return shlex.join([*launch, *words])


def _message(lines: Sequence[str]) -> str:
    """The last error message in the output of a command, with the lines that belong to it."""
    starts = [number for number, line in enumerate(lines) if line.startswith(_ERROR)]
    return "\n".join(lines[starts[-1] :]).removeprefix(_ERROR).strip() if starts else ""


def _pass_on(stream: IO[bytes], lines: list[str]) -> None:
    """Copy output as it comes, and keep its last lines."""
    while data := os.read(stream.fileno(), 65536):
        sys.stderr.buffer.write(data)
        sys.stderr.flush()
        text = (lines.pop() if lines else "") + data.decode("utf-8", "replace")
        lines += text.split("\n")
        del lines[:-1000]


@contextmanager
def _signals_passed_on() -> Iterator[tuple[list["subprocess.Popen[bytes]"], list[int]]]:
    """While the block lasts, Ctrl-C and SIGTERM end the children cleanly, and are remembered."""
    children: list[subprocess.Popen[bytes]] = []
    asked: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        # Ctrl-C in a terminal reaches the children anyway, and a second one would end them at once.
        if number == signal.SIGTERM or not _is_in_front():
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

    before = {number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield children, asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_front() -> bool:
    """Whether this process is in the foreground of a terminal, whose Ctrl-C reaches its children too."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _end_with_parent() -> None:
    """Let the system send SIGTERM to this process when its parent ends, even by SIGKILL; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
