"""Checks of a refusal: one error message and unchanged files."""

import os
from pathlib import Path


def the_one_error(stderr: str, stdout: str) -> str:
    """The message after the only `error: ` of the output."""
    assert stdout == ""
    assert "Traceback" not in stderr
    shown, *errors = stderr.split("error: ")
    assert len(errors) == 1 and (shown == "" or shown.endswith("\n")), stderr
    return errors[0].rstrip("\n")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder below `folder`, with its modification time and bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        data = os.readlink(path).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (path.lstat().st_mtime_ns, data)
    return found
