"""A user of its own for each process that runs programs: whoever has another one can neither see nor end them.

Only root can give a program another user. What the programs of a user leave behind is theirs alone, so that it can be
found and removed.
"""

import fcntl
import os
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
