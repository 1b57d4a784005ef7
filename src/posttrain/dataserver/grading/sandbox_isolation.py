"""A user of its own and a seccomp filter for each sandboxed program.

Each process that runs programs has a user of its own for them: whoever has another one can neither see nor end them.
Only root can give a program another user. What the programs of a user leave behind is theirs alone, so that it can be
found and removed.

The filter refuses calls that reach other processes, or whose effect stays when the program is gone: signals, the memory
of others, the kernel's keyring, new namespaces, and queues and shared memory that belong to nobody. None of it is of
use to a program that reads its input and prints.
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

# User ids that neither distributions nor systemd give to anybody.
_FIRST, _COUNT = 60706, 478
# All who run programs on this machine meet here.
_LOCKS = Path("/tmp/posttrain-toolkit-users")
_OPEN_TO_ALL = ("/tmp", "/var/tmp", "/dev/shm")


@cache
def own_user() -> int | None:
    """The id of a user under which no other process runs programs as long as this one lives; None unless this is root.

    Raises:
        ConfigError: there is none left.
    """
    if os.geteuid() != 0:
        return None
    try:
        # It stays open: the lock ends with the process, however that ends.
        locks = os.open(_LOCKS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(f"{_LOCKS} cannot be used: {error.strerror}; remove it") from None
    if os.fstat(locks).st_uid != 0:
        raise ConfigError(f"{_LOCKS} belongs to somebody else than root; remove it")
    for place in range(_COUNT):
        with suppress(OSError):
            fcntl.lockf(locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            remove_left(_FIRST + place)
            return _FIRST + place
    raise ConfigError(f"{_COUNT} processes on this machine run programs already; there are no users for more")


def remove_left(user: int) -> None:
    """Remove what this user left where everybody may write."""
    for folder in {*_OPEN_TO_ALL, tempfile.gettempdir()}:
        with suppress(FileNotFoundError):
            for name in os.listdir(folder):
                path = os.path.join(folder, name)
                with suppress(FileNotFoundError):
                    if os.lstat(path).st_uid == user:
                        remove(path)


def remove(path: str) -> None:
    """Remove a file, or a folder with all that is in it."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    os.chmod(path, 0o700)
    while names := os.listdir(path):
        for inner in (os.path.join(path, name) for name in names):
            if os.path.islink(inner) or not os.path.isdir(inner):
                os.unlink(inner)
                continue
            # What is in a folder comes up to where it stands, however deep it goes on.
            os.chmod(inner, 0o700)
            for name in os.listdir(inner):
                os.rename(os.path.join(inner, name), os.path.join(path, uuid4().hex))
            os.rmdir(inner)
    os.rmdir(path)


# On x86-64 and on 64-bit ARM.
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
    "io_uring_setup": (425, 425),  # its calls are made where no filter sees them
}
# Where a machine's numbers stand above, and how the kernel calls it.
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_LOAD_WORD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE = 0, 4  # offsets in what the kernel shows the filter
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | 1  # with EPERM
# From here on x86-64 has the same calls once more, under other numbers.
_SECOND_SET = 0x40000000


def call_filter() -> bytes:
    """The filter for this machine; empty where there is none: not on Linux, or on another kind of processor."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES:
        return b""
    column, machine = _MACHINES[platform.machine()]
    numbers = [numbers[column] for numbers in _REFUSED.values()]
    steps = [(_IF_AT_LEAST, _SECOND_SET), *((_IF_EQUAL, number) for number in numbers)]
    # A step that holds jumps over those that are left and over the one that allows.
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
