"""Run llama.cpp's programs apart: without the environment's secrets and, where the system allows it, without network.

A file system's socket works without network too, so the server can be asked.
"""

import os
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import posttrain
from posttrain.base.guard import guarded
from posttrain.errors import RunError

_SHOWN_LINES = 8
_KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TMPDIR")
"""Variables that the programs get; all others, and so every token and proxy, stay here."""


def start(command: Sequence[str], work: Path, log: Path) -> "subprocess.Popen[bytes]":
    """Start a program that ends with this process; `work` becomes its folder and home, `log` gets its output."""
    with log.open("wb") as output:
        return subprocess.Popen(
            guarded([*without_network(), *command]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=work,
            env=_environment(work),
            start_new_session=True,
        )


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a program and wait for it."""
    process.terminate()
    process.wait()


def run(command: Sequence[str], work: Path, log: Path, what: str) -> None:
    """Run a program to its end.

    Raises:
        RunError: its exit code is not 0; the message has the end of its output.
    """
    process = start(command, work, log)
    try:
        code = process.wait()
    except BaseException:
        stop(process)
        raise
    if code:
        raise RunError(f"{what} ended with exit code {code}; the end of its output:\n{end_of(log)}")


def end_of(log: Path) -> str:
    """The last lines of a program's output."""
    with log.open(encoding="utf-8", errors="replace") as file:
        lines = deque(filter(str.strip, file), maxlen=_SHOWN_LINES)
    return "".join(f"  {line.rstrip()[-300:]}\n" for line in lines).rstrip("\n") or "  (empty)"


def _environment(home: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    # The guard is a module of this package, which need not be installed.
    package = str(Path(posttrain.__path__[0]).parent)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**kept, **offline, "HOME": str(home), "PYTHONPATH": package}


@cache
def without_network() -> tuple[str, ...]:
    """The beginning of a command that has no network; nothing where the system does not let users have that."""
    program = shutil.which("unshare")
    if program is None:
        return ()
    prefix = (program, "--user", "--map-current-user", "--net", "--")
    tried = subprocess.run([*prefix, "true"], stdin=subprocess.DEVNULL, capture_output=True)
    return prefix if tried.returncode == 0 else ()
