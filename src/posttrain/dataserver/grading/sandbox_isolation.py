"""Give sandboxed programs a separate user and a seccomp filter.

Each process that runs programs has a separate user for them; other users' programs can neither see nor end them. Only
root can give a program another user. Files that such a user owns were left by its programs, so they can be found and
removed.

The filter refuses system calls that reach other processes or whose effect outlasts the program: signals, the memory of
other processes, the kernel's keyring, new namespaces, and queues and shared memory that belong to no process. A program
that reads its input and prints needs none of them.
"""

import fcntl
import os
import platform
import struct
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import uuid4

from posttrain.errors import ConfigError

# User ids that neither distributions nor systemd assign.
_FIRST, _COUNT = 60706, 478
# The lock file shared by all processes on this machine that run programs.
_LOCKS = Path("/tmp/posttrain-toolkit-users")
_OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm")


@cache
def own_user() -> int | None:
    """A user id that no other process uses for its programs while this one lives; None unless this process is root.

    Raises:
        ConfigError: no id is free, or the lock file cannot be used.
    """
    if os.geteuid() != 0:
        return None
    try:
        # Kept open: the lock is released when the process ends, however it ends.
        locks = os.open(_LOCKS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{_LOCKS} cannot be used: {error.strerror}; remove it") from None
    if os.fstat(locks).st_uid != 0:
        raise ConfigError(f"{_LOCKS} is not owned by root; remove it")
    for place in range(_COUNT):
        with suppress(OSError):
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            remove_left(_FIRST + place)
            return _FIRST + place
    raise ConfigError(f"{_COUNT} processes on this machine already run programs; there are no users left for more")


def remove_left(user: int) -> None:
    """Remove what this user left in folders that everybody may write to."""
    for folder in {*_OPEN_TO_ALL, tempfile.gettempdir()}:
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    if os.lstat(path).st_uid == user:
                        remove(path)


def remove(path: str) -> None:
    """Remove a file, or a folder and everything in it."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    while names := os.listdir(path):
        for inner in (os.path.join(path, name) for name in names):
            if os.path.islink(inner) or not os.path.isdir(inner):
                os.unlink(inner)
                continue
            # Move the contents of each subfolder up into `path`, so that any depth can be removed.
            os.chmod(inner, 0o700)
            for name in os.listdir(inner):
                os.rename(os.path.join(inner, name), os.path.join(path, uuid4().hex))
            os.rmdir(inner)
    os.rmdir(path)


# The refused calls, with their numbers on x86-64 and on 64-bit ARM.
_REFUSED = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "setns": (308, 268),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "io_uring_setup": (425, 425),  # its operations bypass the filter
}
# Per machine: the column of its numbers above, and the kernel's id for it.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD_WORD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE = 0, 4  # offsets in the data that the kernel passes to the filter
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | 1  # _FAIL: with EPERM
# From here on x86-64 has the same calls again, under other numbers.
_SECOND_SET = 0x40000000


def call_filter() -> bytes:
    """The filter for this machine; empty unless it runs Linux on one of the processors above."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return b""
    column, machine = _MACHINES[platform.machine()]
    numbers = [numbers[column] for numbers in _REFUSED.values()]
    steps = [(_IF_AT_LEAST, _SECOND_SET), *((_IF_EQUAL, number) for number in numbers)]
    # A step that matches jumps over the remaining steps and the one that allows, to the one that fails.
    jumps = [_step(code, value, if_so=len(steps) - place) for place, (code, value) in enumerate(steps)]
    return b"".join(
        [
            _step(_LOAD_WORD, _MACHINE),
            _step(_IF_EQUAL, machine, if_so=1),
            _step(_RETURN, _FAIL),
            _step(_LOAD_WORD, _NUMBER),
            *jumps,
            _step(_RETURN, _ALLOW),
            _step(_RETURN, _FAIL),
        ]
    )


def _step(code: int, value: int, if_so: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, 0, value)
