"""Copies of remote files in the cache: downloaded once on a machine or shared cache, whole, and removable at any time.

    remote/ADDRESS/VERSION/NAME         the copy, there only when it is whole
    remote/ADDRESS/VERSION/NAME.part    its beginning, from which a stopped download goes on
    remote/ADDRESS/VERSION/digest       hash of the content, which stays when the copy is removed

ADDRESS and VERSION are hashes. Of each address only the newest version is kept.
"""

import hashlib
import os
import shutil
from pathlib import Path

from posttrain.base.cache import cache_dir
from posttrain.base.console import Counting, console
from posttrain.base.files import atomic_write_text, content_digest, described_hash, fsync_file
from posttrain.base.locks import awaited_lock
from posttrain.data.readers.remote import RemoteFile, current, file_system, told
from posttrain.errors import DataError

_CHUNK = 16 * 1024 * 1024
_MIB = 1024 * 1024


def local_copy(file: RemoteFile) -> Path:
    """The file's copy, downloaded unless it is there.

    Several processes may ask for it at once: one downloads, the others wait.

    Raises:
        DataError: it cannot be downloaded, has changed since it was listed, or is not what the store says it is.
    """
    copy = _folder(file) / file.name
    if copy.is_file():
        return copy
    with awaited_lock(_folder(file).parent / "lock", f"downloading {file.url}"):
        if not copy.is_file():
            _tell_of_change(file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            _download(file, copy)
            _remove_others(copy.parent)
    return copy


def remote_digest(file: RemoteFile) -> str:
    """Hash of the content, as `content_digest` of its copy, which is downloaded only if the hash is not known."""
    kept = _folder(file) / "digest"
    try:
        return kept.read_text(encoding="ascii")
    except FileNotFoundError:
        digest = content_digest(local_copy(file))
        atomic_write_text(kept, digest)
        return digest


def _folder(file: RemoteFile) -> Path:
    return cache_dir() / "remote" / described_hash({"url": file.url}) / file.version


def _tell_of_change(file: RemoteFile) -> None:
    folder = _folder(file)
    if not folder.exists() and any(each.is_dir() for each in folder.parent.iterdir()):
        console.print(f"{file.url} has changed since it was last read")


def _remove_others(folder: Path) -> None:
    for each in folder.parent.iterdir():
        if each.is_dir() and each != folder:
            shutil.rmtree(each)


def _download(file: RemoteFile, copy: Path) -> None:
    part = copy.with_name(f"{copy.name}.part")
    _fetch(file, part)
    if current(file).version != file.version:
        part.unlink()
        raise DataError(f"{file.url} was changed while it was downloaded; start again")
    _require_content(file, part)
    fsync_file(part)
    os.replace(part, copy)


def _fetch(file: RemoteFile, part: Path) -> None:
    """Append to `part` what it lacks."""
    system, path = file_system(file.url)
    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    with part.open("ab") as out, Counting(f"downloading {file.url}", "MiB", file.size // _MIB) as progress:
        going_on = f", going on after {out.tell() / _MIB:,.1f}" if out.tell() else ""
        console.print(f"downloading {file.url} ({file.size / _MIB:,.1f} MiB{going_on})")
        while (at := out.tell()) < file.size:
            end = min(file.size, at + _CHUNK)
            with told(file.url):
                data = system.cat_file(path, start=at, end=end)
            if len(data) != end - at:
                raise DataError(f"{file.url}: of {end - at} bytes from {at}, the store gave {len(data)}")
            out.write(data)
            out.flush()
            progress.reach(end // _MIB, file.size // _MIB)


def _require_content(file: RemoteFile, part: Path) -> None:
    if file.checksum is None:
        return
    kind, wanted = file.checksum
    with part.open("rb") as whole:
        digest = hashlib.file_digest(whole, kind).hexdigest()
    if digest != wanted:
        part.unlink()
        raise DataError(f"{file.url}: its {kind} checksum is {wanted}, but that of what was downloaded {digest}")
