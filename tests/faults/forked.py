"""Run the toolkit's commands as forks of a process that has imported everything, and have something happen to them."""

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
# The order of what is in a set is written to adapter_config.json.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

What = Literal["SIGKILL", "SIGINT", "SIGTERM", "disk full"]


@dataclass(frozen=True)
class Happening:
    """What happens just before an operation is done for the `time`-th time; operations are as `Ended` tells them."""

    operation: str
    time: int = 1
    what: What = "SIGKILL"


@dataclass(frozen=True)
class After:
    """What happens after so many seconds."""

    seconds: float
    what: What = "SIGKILL"


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Attributes:
        code: the exit code; less than 0 where a signal ended it.
        said: all it said.
        seconds: from the fork to the end.
        operations: what it did to the files of the folder that was watched; nothing where it was killed.
        too_late: what was to happen after so many seconds did not, since the command had ended.
    """

    code: int
    said: str
    seconds: float
    operations: tuple[str, ...]
    too_late: bool = False

    @property
    def error(self) -> str:
        """The one message of a command that failed; it is an AssertionError where there is another number of them."""
        lines = self.said.splitlines()
        [first] = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        assert "Traceback" not in self.said, self.said
        return "\n".join(lines[first:]).removeprefix("error: ")


@dataclass
class ForkedCommands:
    """The process that forks; `before` are words that it is started by, such as those of a sandbox."""

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
        self._process.stdin.close()  # which ends it
        self._process.wait(60)
        self._folder.cleanup()

    def seen(self, path: Path) -> Path:
        """Where this process sees what the commands have at `path`; they may have file systems of their own."""
        return Path(f"/proc/{self.pid}/root", *path.parts[1:]) if self.before else path

    def run(
        self,
        *words: str | Path,
        watched: Path,
        happenings: Sequence[Happening | After] = (),
        environment: Mapping[str, str] = {},
    ) -> Ended:
        """Run a command to its end, or to what happens to it; of `After` there can be one."""
        log, told = (Path(self._folder.name, name) for name in ("log", "told"))
        log.write_bytes(b"")  # one that is killed at once does not come to open it
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
    """What forked_process.py is told of a command."""
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
    """A command in a process that imports everything itself, which nothing was forked from."""
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
