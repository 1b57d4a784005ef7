"""A disk that takes no more: what was lost, which is nothing that was there before, and what to do."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.core.runs.checkpoints import latest_checkpoint
from toolkit.core.runs.directory import RunDirectory
from toolkit.errors import RunError, ToolkitError

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# torch's writer of files says only that it could not write.
_UNTOLD = ("PytorchStreamWriter failed writing", "file write failed", "unexpected pos")


@contextmanager
def storage_explained(run: RunDirectory) -> Iterator[None]:
    """Turn a failed write into one message.

    Raises:
        RunError: the disk is full, read-only, or broken.
    """
    try:
        yield
    except Exception as error:
        reason = None if isinstance(error, ToolkitError) else _reason(error)
        if reason is None:
            raise
        raise RunError(f"{reason}; {_way_on(run)}") from error


def _reason(error: BaseException) -> str | None:
    """What the file system said, and of which file, where this is about a file that could not be written."""
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return f"{error.strerror}: {error.filename}" if error.filename else os.strerror(error.errno)
    text = str(error)
    for number in _NUMBERS:  # libraries in other languages pass it on as text
        if f"os error {number}" in text or os.strerror(number) in text:
            return os.strerror(number)
    if any(sign in text for sign in _UNTOLD):
        return "a file could not be written in full"
    earlier = error.__cause__ or error.__context__
    return _reason(earlier) if earlier is not None else None


def _way_on(run: RunDirectory) -> str:
    free = f"{shutil.disk_usage(run.path).free / 2**20:,.0f} MiB are free at {run.path}"
    latest = latest_checkpoint(run)
    if latest is None:
        return f"{free}; no checkpoint had been written. Make room, and start again with --resume"
    return f"{free}; {latest.path.name} is whole. Make room, and --resume goes on from it"
