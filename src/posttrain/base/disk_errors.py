"""Whether an error is that of a disk which takes no more, whoever met it."""

import errno
import os

_NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# torch's writer of files says only that it could not write.
_UNTOLD = ("PytorchStreamWriter failed writing", "file write failed", "unexpected pos")


def why_unwritten(error: BaseException) -> str | None:
    """What the file system said, and of which file, where `error` is about a file that could not be written."""
    if isinstance(error, OSError) and error.errno in _NUMBERS:
        return f"{error.strerror}: {error.filename}" if error.filename else os.strerror(error.errno)
    text = str(error)
    for number in _NUMBERS:  # libraries in other languages pass it on as text
        if f"os error {number}" in text or os.strerror(number) in text:
            return os.strerror(number)
    if any(sign in text for sign in _UNTOLD):
        return "a file could not be written in full"
    earlier = error.__cause__ or error.__context__
    return why_unwritten(earlier) if earlier is not None else None
