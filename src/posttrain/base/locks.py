"""Exclusive locks on output paths, held by the operating system while the process lives.

The lock is flock(2), so a killed holder leaves none behind; the file's content only serves messages. Child processes do
not inherit the lock: the file is closed on exec, and at once in a forked child, such as a data loader or an engine,
which may outlive its parent.

Some file systems have no locks. There a holder counts as alive while its process exists, or forever if it is on another
host.
"""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from posttrain.base.console import console
from posttrain.errors import ConfigError

_LOCKLESS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
# A process that only checks also holds the lock briefly, and the file may be removed between open and lock.
_TRIES = 5
_SECONDS_BETWEEN_TRIES = 0.02
_SECONDS_BETWEEN_LOOKS = 0.2
_held: set[int] = set()  # file descriptors


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: 0 if not known yet.
        since: UTC time in ISO 8601.
        is_certain: False if the file system has no locks, so that only the file's content says so.
    """

    pid: int = 0
    host: str = ""
    since: str = ""
    is_certain: bool = True

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}" if self.pid else "another process"

    def may_live(self) -> bool:
        """Whether the process exists, or may exist because it is on another host."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return self.pid != os.getpid()  # a restarted container may give this process the same pid


class HeldError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(str(holder))
        self.holder = holder


@contextmanager
def process_lock(path: Path) -> Iterator[None]:
    """Hold a lock on `path` during the block.

    The file and its missing parent folders are created, and removed afterwards unless a folder holds something else.

    Raises:
        HeldError: another process holds the lock; raised at once.
        OSError: the file cannot be created.
    """
    owner, folder = os.getpid(), path.parent
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    descriptor = _take(path)
    try:
        yield
    finally:
        if os.getpid() == owner:  # a forked child has no lock
            # Removed while locked: otherwise another process could lock a file that is about to be removed.
            if _is_at(descriptor, path):
                path.unlink()
            _held.discard(descriptor)
            os.close(descriptor)
            with suppress(OSError):  # stop at the first that is not empty
                for each in made:
                    each.rmdir()


@contextmanager
def awaited_lock(path: Path, doing: str) -> Iterator[None]:
    """Like `process_lock`, but wait until no other process holds it; one line says who is `doing` what meanwhile."""
    is_told = False
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(process_lock(path))
                break
            except HeldError as error:
                if not is_told:
                    hint = "" if error.holder.is_certain else f"; if that process is gone, remove {path}"
                    console.print(f"waiting for {error.holder}, which is {doing}{hint}")
                is_told = True
                time.sleep(_SECONDS_BETWEEN_LOOKS)
        yield


def _take(path: Path) -> int:
    for tries_left in reversed(range(_TRIES)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if (descriptor := _try_to_take(path)) is not None:
                return descriptor
        except (FileExistsError, FileNotFoundError):  # another process's lock was being removed
            if not tries_left:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)
    raise HeldError(holder_of(path) or Holder())


def _try_to_take(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    locked = is_enforced = _lock(descriptor, fcntl.LOCK_EX)
    if locked is None:
        found = _read(descriptor)
        locked = not (found.pid and found.may_live())
    if not (locked and _is_at(descriptor, path)):
        os.close(descriptor)
        return None
    _held.add(descriptor)
    os.ftruncate(descriptor, 0)
    since = datetime.now(UTC).isoformat(timespec="seconds")
    own = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    os.pwrite(descriptor, json.dumps(own).encode() + b"\n", 0)
    if is_enforced is None:
        console.print(
            f"the file system of {path.parent} has no locks: while the process named in {path.name} is alive, other "
            "commands that write there are refused"
        )
    return descriptor


def holder_of(path: Path) -> Holder | None:
    """The process that holds the lock `path`, if any; changes nothing."""
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
        return Holder()


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the open file, and not one that replaced it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _close_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


@contextmanager
def own_output(output: Path) -> Iterator[None]:
    """Keep other processes from writing the file or folder `output` during the block.

    Locks a hidden file beside it, which is removed afterwards; a killed process keeps nobody out.

    Raises:
        ConfigError: another process is writing it (raised at once), or the lock file cannot be created.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(process_lock(lock_of(output)))
        except HeldError as error:
            raise _being_written(output, error.holder) from None
        except OSError as error:
            raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from None
        yield


def require_unowned(output: Path) -> None:
    """Raise ConfigError if another process is writing `output`; creates nothing."""
    if (holder := holder_of(lock_of(output))) is not None:
        raise _being_written(output, holder)


def written_in(folder: Path) -> Iterator[tuple[str, Holder]]:
    """Yield the name of each file or folder in `folder` that is being written, with the process that writes it."""
    for lock in folder.glob(".*.lock"):
        if (holder := holder_of(lock)) is not None:
            yield lock.name.removeprefix(".").removesuffix(".lock"), holder


def lock_of(output: Path) -> Path:
    """The file that is locked while `output` is written."""
    absolute = Path(os.path.realpath(output))  # the same for every spelling of the path
    return absolute.with_name(f".{absolute.name}.lock")


def in_use(what: str, lock: Path, holder: Holder, instead: str) -> ConfigError:
    """The error for the second process: `what` is going on, who holds the lock, what to do `instead` of waiting."""
    hint = "" if holder.is_certain else f"; if that process is gone, remove {lock}"
    return ConfigError(f"{what} by {holder}; wait until it ends, stop it, or {instead}{hint}")


def _being_written(output: Path, holder: Holder) -> ConfigError:
    return in_use(f"{output} is being written", lock_of(output), holder, "give this output another name")
