"""Keep what the terminal shows during a run in its folder: a file for each attempt, with the time of each line.

Progress bars are left out, and so is what native libraries and other processes write.
"""

import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, TextIO, cast

from posttrain.base.console import console
from posttrain.base.processes import is_main_process
from posttrain.base.secrets import without_secrets
from posttrain.base.text import counted, on_one_line
from posttrain.errors import RunInterrupted, ToolkitError
from posttrain.runs.directory import RunDirectory

# Colours and movements of the cursor, and links.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

_recording: "AttemptLog | None" = None


class AttemptLog:
    """Holds lines until it has a file. A line that cannot be written is counted, and never an error."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._early: list[str] = []
        self._file: FileIO | None = None
        self._lost = 0
        self._has_told = False

    def begin(self, folder: Path) -> None:
        """Write to the next free `attempt-N.log` in `folder`, first what has been shown so far."""
        with self._lock:
            try:
                folder.mkdir(exist_ok=True)
                numbers = [path.stem.removeprefix("attempt-") for path in folder.glob("attempt-*.log")]
                number = max((int(text) for text in numbers if text.isdecimal()), default=0) + 1
                self._file = FileIO(folder / f"attempt-{number}.log", "x")
            except OSError as error:
                self._tell(error)
            early, self._early = self._early, []
            for line in early:
                self._write(line)

    def add(self, text: str) -> None:
        """Add the lines of a text with the present time, without secrets and blank lines."""
        if not text.strip():
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        with self._lock:
            for line in _CONTROL.sub("", without_secrets(text)).split("\n"):
                if line.strip():
                    self._write(f"{now} {on_one_line(line.rstrip())}\n")

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _write(self, line: str) -> None:
        if self._file is None:
            self._early.append(line)
            return
        lost = f"\n({counted(self._lost, 'line')} could not be written)\n" if self._lost else ""
        data = (lost + line).encode()
        try:
            if self._file.write(data) == len(data):
                self._lost = 0
                return
        except OSError as error:
            self._tell(error)
        self._lost += 1

    def _tell(self, error: OSError) -> None:
        """Say it once."""
        if not self._has_told:
            self._has_told = True
            console.print(f"warning: the log of this attempt is incomplete: {error.strerror}; training goes on")


class _Copied:
    """A stream whose lines also go to a log; those that redraw themselves, as progress bars do, are left out."""

    def __init__(self, copied: TextIO, log: AttemptLog) -> None:
        """`copied` is the stream; the console, whose lines the log gets by themselves, writes to it directly."""
        self.copied = copied
        self._log = log
        self._lock = threading.RLock()
        self._rest = ""

    def write(self, text: str) -> int:
        """Write, and add the lines that are whole now."""
        written = self.copied.write(text)
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if "\r" not in line.rstrip("\r"):
                self._log.add(line)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self.copied, name)


@contextmanager
def recorded() -> Iterator[None]:
    """Record what is shown within the block, and how it ended; `begin_attempt` says where."""
    global _recording
    if not is_main_process():
        yield
        return
    log = _recording = AttemptLog()
    stream = sys.stderr
    sys.stderr = copied = cast(TextIO, _Copied(stream, log))
    console.listener = log.add
    try:
        yield
    except BaseException as error:
        log.add(_last_words(error))
        raise
    finally:
        console.listener = _recording = None
        if sys.stderr is copied:
            sys.stderr = stream
        log.close()


def begin_attempt(run: RunDirectory) -> None:
    """Write what is recorded to a new file in the run's `logs`; nothing if nothing is recorded."""
    if _recording is not None:
        _recording.begin(run.logs)


def _last_words(error: BaseException) -> str:
    """The message that the command ends with; for an error that nobody expected, its traceback."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, ToolkitError):
        return str(error) if isinstance(error, RunInterrupted) else f"error: {error}"
    return "".join(traceback.format_exception(error))
