"""One process at a time: a file that the operating system keeps locked for as long as its holder lives.

The lock is that of flock(2), so a holder that is killed leaves none; what the file says is for the message alone. No
other process comes to hold it by descent: it is closed on exec, and at once in a forked child, such as a loader of
data or an engine, which may outlive its parent.

Some file systems have no locks. There a holder is taken for alive as long as its process is there, or for ever where
that is on another host.
"""

import errno
import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

_LOCKLESS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
# Whoever only looks has the lock for a moment too, and the file may go between its opening and its locking.
_TRIES = 5
_SECONDS_BETWEEN_TRIES = 0.02


@dataclass(frozen=True)
class Holder:
    """Who holds a lock.

    Attributes:
        pid: 0 where that is not known yet.
        since: a time in UTC, as ISO 8601.
        is_certain: False where the file system has no locks, so that only the file says so.
    """

    pid: int
    host: str
    since: str
    is_certain: bool = True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}" if self.pid else "another process"

    def may_live(self) -> bool:
        """Whether the process is there, or cannot be looked for since it is on another host."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return self.pid != os.getpid()  # as it may be again after the restart of a container


_UNKNOWN = Holder(0, "", "")


class HeldError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


class ProcessLock:
    """Holds `path` locked from entering this object to leaving it, or to the end of the process.

    The file is made for it, with the folders above, and removed afterwards with those of them that hold nothing else.

    Attributes:
        is_enforced: False on a file system that has no locks.
    """

    def __init__(self, path: Path) -> None:
        self.is_enforced = True
        self._path = path
        self._descriptor: int | None = None
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            HeldError: another process has it, told at once.
            OSError: the file cannot be made.
        """
        folder = self._path.parent
        self._made = [each for each in (folder, *folder.parents) if not each.exists()]
        for tries_left in reversed(range(_TRIES)):
            try:
                folder.mkdir(parents=True, exist_ok=True)
                if self._take():
                    return self
            except (FileExistsError, FileNotFoundError):  # it may go while it is made, with another's lock
                if not tries_left:
                    raise
            time.sleep(_SECONDS_BETWEEN_TRIES)
        raise HeldError(holder_of(self._path) or _UNKNOWN)

    def __exit__(self, *_: object) -> None:
        if self._descriptor is None:  # a forked child has none
            return
        _HELD.discard(self)
        # While it is locked, or another process could lock a file that is about to go.
        if _is_at(self._descriptor, self._path):
            self._path.unlink()
        os.close(self._descriptor)
        self._descriptor = None
        with suppress(OSError):  # the first that is not empty
            for folder in self._made:
                folder.rmdir()

    def _take(self) -> bool:
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except FileNotFoundError:  # the folder went just now, with another's lock
            return False
        locked = _lock(descriptor, fcntl.LOCK_EX)
        self.is_enforced = locked is not None
        if locked is None:
            found = _read(descriptor)
            locked = not (found.pid and found.may_live())
        if not (locked and _is_at(descriptor, self._path)):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        _HELD.add(self)
        os.ftruncate(descriptor, 0)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        own = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
        os.pwrite(descriptor, json.dumps(own).encode() + b"\n", 0)
        return True

    def abandon(self) -> None:
        """Be without the lock, which a parent of this process has."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lock `path`, if any does; nothing is changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        free, found = _lock(descriptor, fcntl.LOCK_SH), _read(descriptor)
        if free is None:
            found = replace(found, is_certain=False)
            free = not (found.pid and found.may_live())
        return None if free else found
    finally:
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool | None:
    """Whether the file could be locked; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _LOCKLESS:
            raise
        return None
    return True


def _read(descriptor: int) -> Holder:
    try:
        return Holder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return _UNKNOWN


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether `path` names the open file, and not one that took its name since."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


_HELD: set[ProcessLock] = set()


def _abandon_all() -> None:
    for lock in _HELD:
        lock.abandon()
    _HELD.clear()


os.register_at_fork(after_in_child=_abandon_all)
