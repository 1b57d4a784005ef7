"""What the files of a folder were when it was finished, and what is wrong with them since."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from posttrain.base.files import content_digest

Recorded = Mapping[str, Mapping[str, Any]]


def record_files(folder: Path) -> Recorded:
    """Size in bytes and digest (BLAKE2b) of each file under `folder`, by its path in it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    with ThreadPoolExecutor() as threads:  # hashing leaves the interpreter's lock
        digests = list(threads.map(content_digest, files))
    return {
        str(file.relative_to(folder)): {"bytes": file.stat().st_size, "blake2b": digest}
        for file, digest in zip(files, digests, strict=True)
    }


def file_faults(folder: Path, recorded: Recorded, *, contents: bool) -> Iterator[str]:
    """What is wrong with the files of `folder`, each in a few words; nothing where all are as they were recorded.

    Args:
        contents: read them too, and not only compare their sizes.
    """
    with ThreadPoolExecutor() as threads:
        found = threads.map(lambda each: _fault(folder / each[0], each[1], contents=contents), recorded.items())
        for name, fault in zip(recorded, found, strict=True):
            if fault is not None:
                yield f"{name} {fault}"


def _fault(file: Path, facts: Mapping[str, Any], *, contents: bool) -> str | None:
    size, digest = facts["bytes"], facts["blake2b"]
    if not file.is_file():
        return "is missing"
    try:
        if file.stat().st_size != size:
            return f"has {file.stat().st_size:,} bytes, and had {size:,}"
        return "is not what was written (its digest differs)" if contents and content_digest(file) != digest else None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
