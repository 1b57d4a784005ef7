"""What is kept of each step: what its results depend on, the files that it made, and how long it took."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from posttrain.base.cache import file_digest
from posttrain.base.files import atomic_write_text, described_hash
from posttrain.errors import ConfigError

RECORDS = ".steps"
"""Their folder in the pipeline's."""
_KEY_DIGITS = 8

Parts = Mapping[str, Any]


@dataclass(frozen=True)
class Made:
    """A file that a step made; `path` starts from the step's folder."""

    path: str
    size: int
    mtime_ns: int
    digest: str

    @classmethod
    def of(cls, path: Path, folder: Path) -> "Made":
        """The file as it is now."""
        stat = path.stat()
        return cls(str(path.relative_to(folder)), stat.st_size, stat.st_mtime_ns, file_digest(path))

    def fault(self, folder: Path) -> str | None:
        """Why the file is not the one that was made; None if it is."""
        path = folder / self.path
        if not path.is_file():
            return f"{path} is gone"
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (self.size, self.mtime_ns) or file_digest(path) == self.digest:
            return None
        return f"{path} was changed after it was made"


@dataclass(frozen=True)
class Record:
    """An attempt at a step.

    Attributes:
        key: hash of `parts`.
        parts: everything that the results depend on, with the digests of what other steps made.
        started: time of the first attempt, in seconds since 1970.
        seconds: how long all attempts took.
        made: the files; empty until the step has succeeded.
        digest: of what other steps use; None until the step has succeeded.
        error: how the last attempt failed.
    """

    step: str
    key: str
    parts: Parts
    started: float
    seconds: float = 0.0
    made: Sequence[Made] = field(default_factory=tuple)
    digest: str | None = None
    error: str = ""

    def require_unchanged(self, folder: Path) -> None:
        """Raise ConfigError if a file that the step made in the folder is gone, or is another one."""
        faults = [fault for each in self.made if (fault := each.fault(folder)) is not None]
        if faults:
            raise ConfigError(
                f"{'; '.join(faults)}: restore it, or make the results of {self.step} again with --rerun {self.step}"
            )


def key_of(parts: Parts) -> str:
    """The hash that names a step's folder."""
    return described_hash(parts)[:_KEY_DIGITS]


class Records:
    """All attempts at the steps of a pipeline, kept in its folder."""

    def __init__(self, folder: Path) -> None:
        """Read them; a damaged file counts as none."""
        self._folder = folder / RECORDS
        found = [record for path in sorted(self._folder.glob("*.json")) if (record := _read(path)) is not None]
        self._known = {(record.step, record.key): record for record in found}

    def find(self, step: str, key: str) -> Record | None:
        """The attempt at a step with that key, if there was one."""
        return self._known.get((step, key))

    def last(self, step: str) -> Record | None:
        """The newest attempt at a step, with whatever key."""
        found = [each for each in self if each.step == step]
        return max(found, key=lambda each: each.started, default=None)

    def write(self, record: Record) -> None:
        """Keep an attempt, in the place of an earlier one with the same key."""
        self._known[record.step, record.key] = record
        self._folder.mkdir(parents=True, exist_ok=True)
        atomic_write_text(self._path(record.step, record.key), json.dumps(asdict(record), indent=1) + "\n")

    def forget(self, step: str, key: str) -> None:
        """Remove an attempt."""
        self._known.pop((step, key), None)
        self._path(step, key).unlink(missing_ok=True)

    def _path(self, step: str, key: str) -> Path:
        return self._folder / f"{step}-{key}.json"

    def __iter__(self) -> Iterator[Record]:
        """All attempts, by step and key."""
        return iter(self._known.values())


def _read(path: Path) -> Record | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Record(**{**found, "made": tuple(Made(**each) for each in found["made"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
