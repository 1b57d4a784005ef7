"""Records which modules of the package a run enters, in each of its processes.

Python imports this file at startup if its folder is in PYTHONPATH; checks/walks.py puts it there. POSTTRAIN_WALK is the
folder to write to, and POSTTRAIN_WALK_PARTS names the functions during which modules are counted: a process opens a
part by calling its function, and every process counts until it returns.
"""

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[2] / "src" / "posttrain") + os.sep


class Recorder:
    """A profile function for `sys.setprofile`."""

    def __init__(self, folder: Path, parts: dict[str, str]) -> None:
        self._parts = {function: part for part, function in parts.items()}
        self._open = folder / "open"
        self._lines = os.open(folder / "entered", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._opener: FrameType | None = None
        self._seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Called at each call and return in this thread."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._enter(frame, module_of(frame.f_code))
        elif frame is self._opener and event == "return":
            self._opener = None
            self._open.unlink()

    def _enter(self, frame: FrameType, module: str) -> None:
        part = self._parts.get(f"{module}:{frame.f_code.co_qualname}")
        if part is not None and self._opener is None:
            self._opener = frame
            self._open.write_text(part)
        with contextlib.suppress(FileNotFoundError):
            now = self._open.read_text()
            if now and (now, module) not in self._seen and not is_importing(frame):
                self._seen.add((now, module))
                os.write(self._lines, f"{time.monotonic_ns()} {now} {module}\n".encode())


def module_of(code: CodeType) -> str:
    """The module's name, without the package's."""
    return code.co_filename.removeprefix(PACKAGE).removesuffix(".py").removesuffix("/__init__").replace(os.sep, ".")


def is_importing(frame: FrameType | None) -> bool:
    """Whether this runs while some module is being imported."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


recorder = Recorder(Path(os.environ["POSTTRAIN_WALK"]), json.loads(os.environ["POSTTRAIN_WALK_PARTS"]))
sys.setprofile(recorder)
threading.setprofile(recorder)
