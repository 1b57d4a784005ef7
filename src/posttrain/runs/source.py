"""Which code this is: a version alone does not tell what was changed since."""

import hashlib
from functools import cache
from pathlib import Path

import posttrain

_PACKAGE = Path(posttrain.__path__[0])


@cache
def source_digest(package: Path = _PACKAGE) -> str:
    """BLAKE2b over the names and contents of all files of the package but what is compiled, as 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(package).as_posix()}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


def commit(root: Path = _PACKAGE.parent.parent) -> str | None:
    """The commit that is checked out in `root`, as git's own files name it; None where this is no checkout.

    `root` is where this package lies in `src`, so that the repository of whoever installed it is not taken for it.
    """
    try:
        folder = root / ".git"
        if folder.is_file():  # of a further work tree: it names the folder that is its own
            folder = root / folder.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        if not head.startswith("ref:"):
            return head
        name = head.removeprefix("ref:").strip()
        common = folder / "commondir"
        shared = folder / common.read_text(encoding="utf-8").strip() if common.is_file() else folder
        return _commit_of(shared, name)
    except OSError:
        return None


def _commit_of(folder: Path, name: str) -> str | None:
    if (folder / name).is_file():
        return (folder / name).read_text(encoding="utf-8").strip()
    for line in (folder / "packed-refs").read_text(encoding="utf-8").splitlines():
        if line.endswith(f" {name}"):
            return line.split()[0]
    return None
