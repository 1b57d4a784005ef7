"""Run the toolkit's commands as forks of a process that has imported everything, and inject faults into them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

SCRIPT = Path(__file__).with_name("forked_process.py")
# A fixed hash seed, because adapter_config.json depends on the order of a set.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

What = Literal["SIGKILL", "SIGINT", "SIGTERM", "disk full"]


@dataclass(frozen=True)
class Happening:
    """A fault just before the `time`-th occurrence of an operation, named as in `Ended.operations`."""

    operation: str
    time: int = 1
    what: What = "SIGKILL"


@dataclass(frozen=True)
class After:
    """A fault after this many seconds."""

    seconds: float
    what: What = "SIGKILL"


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Attributes:
        code: the exit code; negative if a signal ended it.
        said: its output.
        seconds: from the fork to the end.
        operations: its file operations in the watched folder; empty if it was killed.
        too_late: the command ended before the `After` fault was due.
    """

    code: int
    said: str
    seconds: float
    operations: tuple[str, ...]
    too_late: bool = False

    @property
    def error(self) -> str:
        """The error message of a failed command; raises unless there is exactly one."""
        lines = self.said.splitlines()
        [first] = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        assert "Traceback" not in self.said, self.said
        return "\n".join(lines[first:]).removeprefix("error: ")


@dataclass
class ForkedCommands:
    """The forking process; `before` is a command to run it under, such as a sandbox."""

    before: Sequence[str] = ()
    pid: int = 0
    _folder: Any = field(default_factory=TemporaryDirectory)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [*self.before, sys.executable, SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ENVIRONMENT},
        )
        self.pid = self._answer()["pid"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # ends the process
        self._process.wait(60)
        self._folder.cleanup()

    def seen(self, path: Path) -> Path:
        """The commands' `path` as seen from this process; the commands may have their own mounts."""
        return Path(f"/proc/{self.pid}/root", *path.parts[1:]) if self.before else path

    def run(
        self,
        *words: str | Path,
        watched: Path,
        happenings: Sequence[Happening | After] = (),
        environment: Mapping[str, str] = {},
    ) -> Ended:
        """Run a command until it ends; at most one of the faults may be an `After`."""
        log, told = (Path(self._folder.name, name) for name in ("log", "told"))
        log.write_bytes(b"")  # a command that is killed at once never opens it
        told.unlink(missing_ok=True)
        order = order_of(words, watched, happenings, told=told, environment=environment)
        assert self._process.stdin is not None
        print(json.dumps({**order, "log": str(log)}), file=self._process.stdin, flush=True)
        answer = self._answer()
        operations = json.loads(told.read_text()) if told.exists() else ()
        said = log.read_text(errors="replace")
        return Ended(answer["code"], said, answer["seconds"], tuple(operations), answer["too_late"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process that forks has ended"
        return json.loads(line)


def order_of(
    words: Sequence[str | Path],
    watched: Path,
    happenings: Sequence[Happening | After] = (),
    *,
    told: Path,
    environment: Mapping[str, str] = {},
) -> dict[str, Any]:
    """The order for a command, in the format of forked_process.py."""
    afters = [vars(each) for each in happenings if isinstance(each, After)]
    return {
        "words": [str(word) for word in words],
        "watched": str(watched),
        "told": str(told),
        "happenings": [vars(each) for each in happenings if isinstance(each, Happening)],
        "after": afters[0] if afters else None,
        "environment": dict(environment),
    }


def in_a_process(
    words: Sequence[str | Path], folder: Path, happenings: Sequence[Happening], **environment: str
) -> Ended:
    """Run a command in a fresh process that is not a fork and does its own imports."""
    told = folder.with_name(f"{folder.name}.told.json")
    order = order_of(words, folder, happenings, told=told, environment=environment)
    finished = subprocess.run(
        [sys.executable, SCRIPT, json.dumps(order)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        env={**os.environ, **ENVIRONMENT},
    )
    return Ended(finished.returncode, finished.stdout, 0.0, ())
