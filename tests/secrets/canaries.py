"""Marked secrets, and the search for their marks in files, process output and command lines."""

import base64
import gzip
import os
import subprocess
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# A mark has no character that JSON, Python, HTML or URLs escape, so only base64 changes it.
# The judge's key is in a variable that does not sound like a secret: only the config makes it one.
MARKS = {
    "HF_TOKEN": "canary-hub-2f81c7",
    "WANDB_API_KEY": "canary-wandb-90d3e5",
    "PGPASSWORD": "canary-postgres-71ab46",
    "DATASERVER_TOKEN": "canary-dataserver-c85f10",
    "JUDGE_AUTH": "canary-judge-3be9d2",
    "GRADER_TOKEN": "canary-grader-e6047a",
    "AWS_SECRET_ACCESS_KEY": "canary-cloud-d417b9",
}
# Characters that each encoding changes and that are allowed in a header.
_ODD = '/"+\\%&<'

SECRETS = {name: f"{mark}{_ODD}{mark[::-1]}" for name, mark in MARKS.items()}
"""Environment variables with secrets."""


def in_base64(text: str) -> list[bytes]:
    """The base64 of a text inside a longer one: its complete groups at each of the three possible alignments."""
    data = text.encode()
    found = []
    for start in range(3):
        whole = data[(3 - start) % 3 :]
        found.append(base64.b64encode(whole[: len(whole) // 3 * 3]))
    return found


SPELLINGS: dict[str, list[bytes]] = {
    name: [mark.encode(), mark[::-1].encode(), *in_base64(mark)] for name, mark in MARKS.items()
}


def secrets_in(content: bytes) -> list[str]:
    """The names of the secrets in `content`, in any encoding."""
    return [name for name, spelled in SPELLINGS.items() if any(spelling in content for spelling in spelled)]


def leaks(places: Mapping[str, bytes]) -> list[str]:
    """`place: secret` for each secret found."""
    return [f"{place}: {name}" for place, content in places.items() for name in secrets_in(content)]


def files_below(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder by path, decompressed if gzipped."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    assert files, f"there is nothing in {folder} to look through"
    return {str(path): _unpacked(path) for path in files}


def _unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


@dataclass
class Watcher:
    """Collects the command lines of a running process and its descendants."""

    process: psutil.Process
    commands: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> bytes:
        """Stop watching and return all command lines as one text."""
        self._ended.set()
        self._thread.join()
        assert self.commands, "the process was gone before it could be looked at"
        return "\n".join(sorted(self.commands)).encode()

    def _look(self) -> None:
        while not self._ended.is_set():
            for each in self._family():
                try:
                    self.commands.add(" ".join(each.cmdline()))
                except psutil.Error:
                    continue
            self._ended.wait(0.05)

    def _family(self) -> Iterable[psutil.Process]:
        try:
            return [self.process, *self.process.children(recursive=True)]
        except psutil.Error:
            return []


@dataclass(frozen=True)
class Watched:
    """A process that ended: its exit code, its output, and the command lines of it and its descendants."""

    code: int
    said: bytes
    commands: bytes

    @property
    def text(self) -> str:
        """The output, with runs of whitespace collapsed to one space."""
        return " ".join(self.said.decode().split())

    @property
    def places(self) -> dict[str, bytes]:
        """The places that must hold no secrets."""
        return {"what it said": self.said, "command lines": self.commands}


def watched(
    command: Iterable[str | Path], folder: Path, environment: Mapping[str, str] = SECRETS, seconds: float = 250.0
) -> Watched:
    """Run a command in a folder, with secrets in its environment."""
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    watcher = Watcher(psutil.Process(process.pid))
    try:
        said, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
        commands = watcher.end()
    return Watched(process.returncode, said, commands)
