"""The cache folder, and cached content hashes of large files, valid while the file is unchanged.

Each hash is stored with the file's device, inode, size, mtime and ctime (in nanoseconds). ctime is what matters: every
write to the file and every reset of its mtime advances it, and no program can set it. Only writes in quick succession
can leave it the same. So the hash of a file that changed within the last minute is not stored; small files are always
hashed.
"""

import hashlib
import json
import os
import time
from pathlib import Path

from posttrain.base.files import atomic_write_text, content_digest


def cache_dir() -> Path:
    """`$POSTTRAIN_TOOLKIT_CACHE`, else `posttrain-toolkit` in the user's cache folder."""
    named = os.environ.get("POSTTRAIN_TOOLKIT_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "posttrain-toolkit"


# Smaller files are hashed in less than a tenth of a second.
_LEAST_BYTES = 64 * 1024 * 1024

# Longer than the granularity of file system timestamps, the clock skew of file servers, and the time for which writes
# through a memory mapping go unnoticed.
_SETTLED_SECONDS = 60


def file_digest(path: Path) -> str:
    """`content_digest` of the file, from the cache if the file has not changed since it was hashed."""
    before = path.stat()
    if before.st_size < _LEAST_BYTES:
        return content_digest(path)
    state = _state(before)
    kept = cache_dir() / "digests" / f"{_name_of(path)}.json"
    if (remembered := _read(kept, state)) is not None:
        return remembered
    is_settled = time.time() - before.st_ctime > _SETTLED_SECONDS
    digest = content_digest(path)
    if is_settled and _state(path.stat()) == state:
        kept.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(kept, json.dumps({"path": str(path.absolute()), "state": state, "digest": digest}))
    return digest


def _state(stat: os.stat_result) -> list[int]:
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _name_of(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path.absolute()), digest_size=16).hexdigest()


def _read(kept: Path, state: list[int]) -> str | None:
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        return found["digest"] if found["state"] == state else None
    except (OSError, ValueError, LookupError, TypeError):
        return None
