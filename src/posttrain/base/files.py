"""Write and rename files atomically, flush and hash them (and JSON values), and explain what is wrong with them."""

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO

from posttrain.base.text import as_shown, on_one_line
from posttrain.errors import DataError

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
# torch's file writer does not report the cause.
_UNTOLD = ("PytorchStreamWriter failed writing", "file write failed", "unexpected pos")


def nearest_name(path: Path) -> str:
    """The name nearest to that of a missing file or folder, as the end of a message; empty if there is none."""
    if os.path.exists(path) or not os.path.isdir(path.parent):
        return ""
    close = get_close_matches(path.name, [each.name for each in path.parent.iterdir()], n=1)
    return f"; did you mean {on_one_line(close[0])}?" if close else ""


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that is renamed to `path` when the block ends, or removed if the block fails."""
    # A symbolic link stays one: the file it points to is replaced.
    target = Path(os.path.realpath(path))
    aside = temporary_sibling(target)
    try:
        with aside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
    _fsync_folder(target.parent)


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or all of the new, even after a power cut."""
    with atomic_writer(path) as file:
        file.write(data)


def atomic_write_text(path: Path, text: str) -> None:
    """Like `atomic_write_bytes`, for text: UTF-8, with line endings unchanged."""
    atomic_write_bytes(path, text.encode())


def atomic_rename_dir(source: Path, target: Path) -> None:
    """Rename a folder durably; OSError if `target` is a folder that is not empty."""
    os.rename(source, target)
    for parent in {source.parent, target.parent}:
        _fsync_folder(parent)


@contextmanager
def atomic_folder(folder: Path, is_whole: Callable[[Path], bool], mode: int = 0o777) -> Iterator[Path]:
    """Yield an empty folder that is renamed to `folder` when the block ends, or removed if the block fails.

    An existing `folder` is kept if `is_whole` accepts it, e.g. because another process was first, else replaced.

    Args:
        mode: the folder's permissions, less those of the umask.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_sibling(folder)
    aside.mkdir(mode)
    try:
        yield aside
        fsync_tree(aside)
        if folder.is_dir() and not is_whole(folder):
            shutil.rmtree(folder)
        atomic_rename_dir(aside, folder)
    except OSError:
        if not folder.is_dir() or not is_whole(folder):
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def temporary_sibling(path: Path) -> Path:
    """An unused hidden name in the same folder, for a file or folder that will be renamed to `path`."""
    # Part of the name is enough to recognise it; the whole name could exceed the file system's limit.
    return path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")


def remove_left_behind(path: Path) -> None:
    """Remove temporary files and folders of `path` left by killed processes; no other may be writing it now."""
    left = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{16}}\.tmp")  # no match for names over 40 characters
    for each in path.parent.iterdir():
        if left.fullmatch(each.name) and each.is_dir():
            shutil.rmtree(each)
        elif left.fullmatch(each.name):
            each.unlink()


def fsync_tree(folder: Path) -> None:
    """Flush every file and folder under `folder`, and `folder` itself, to disk."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            file = Path(parent, name)
            # Opening a pipe would wait for its other end, and a link's target is not part of the tree.
            if stat.S_ISREG(file.lstat().st_mode):
                fsync_file(file)
        _fsync_folder(Path(parent))


def fsync_file(path: Path) -> None:
    """Flush the file to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def described_hash(parts: Mapping[str, object]) -> str:
    """Hash of named JSON values, as 32 hex digits; the order of the names does not count."""
    described = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()


def content_digest(path: Path) -> str:
    """BLAKE2b of the file's bytes, as 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def require_file(path: Path) -> None:
    """Raise DataError unless `path` is a regular file that can be read."""
    name = as_shown(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise DataError(f"{name} is a folder; name a file in it")
        # Data are read twice, first to be hashed; a pipe or device can be read only once and may never end.
        if not stat.S_ISREG(mode):
            raise DataError(f"{name} is a pipe or a device, not a file; write the data to a file first")
        path.open("rb").close()
    except FileNotFoundError:
        raise DataError(f"no such file: {name}") from None
    except OSError as error:
        raise DataError(f"cannot read {name}: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{str(path)!r} is not a valid file name: {error}") from None


def why_unwritten(error: BaseException) -> str | None:
    """The file system's message, and the file if known, if a failed write caused `error`; else None."""
    if isinstance(error, OSError) and error.errno in _NOT_WRITTEN:
        return f"{error.strerror}: {error.filename}" if error.filename else os.strerror(error.errno)
    text = str(error)
    for number in _NOT_WRITTEN:  # libraries in other languages report it as text
        if f"os error {number}" in text or os.strerror(number) in text:
            return os.strerror(number)
    if any(sign in text for sign in _UNTOLD):
        return "a file could not be written in full"
    earlier = error.__cause__ or error.__context__
    return why_unwritten(earlier) if earlier is not None else None


def _fsync_folder(folder: Path) -> None:
    try:
        fsync_file(folder)
    except OSError as error:
        # Some network file systems cannot fsync a folder and offer nothing better.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
