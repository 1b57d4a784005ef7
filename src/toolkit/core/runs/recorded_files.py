"""What the files of a folder were when it was finished, and what is wrong with them since."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from toolkit.core.files import content_digest

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
    for name, facts in recorded.items():
        file = folder / name
        if not file.is_file():
            yield f"{name} is missing"
        elif file.stat().st_size != facts["bytes"]:
            yield f"{name} has {file.stat().st_size:,} bytes, and had {facts['bytes']:,}"
        elif contents and content_digest(file) != facts["blake2b"]:
            yield f"{name} is not what was written (its digest differs)"
