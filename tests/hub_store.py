"""What the hub of our own holds: repositories with branches, commits and files, in memory; and how it can fail.

What it was asked is in `requests`, and when in `times`.
"""

import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

TOKEN = "hf_contractserver0123456789"
USER = "owner"


@dataclass
class Fault:
    """Something that goes wrong in the first `times` requests whose `METHOD path` matches.

    Attributes:
        what: a status; `silent`, which says nothing for three seconds; `cut`, which closes the connection before the
            body has been read; or `lost`, which does what is asked and closes the connection without an answer.
        wait: the header Retry-After, in seconds.
    """

    request: str
    what: int | str
    times: int = 1
    wait: float | None = None


@dataclass
class Repo:
    """A repository: its commits, each with its files and its title, and its branches.

    A file is its content and whether it is kept as a large one.
    """

    private: bool
    commits: dict[str, tuple[dict[str, tuple[bytes, bool]], str]] = field(default_factory=dict)
    branches: dict[str, list[str]] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, tuple[bytes, bool]], title: str) -> str:
        history = self.branches.setdefault(branch, [])
        described = json.dumps([history, title, sorted((name, len(data)) for name, (data, _) in files.items())])
        oid = hashlib.sha1(described.encode()).hexdigest()
        self.commits[oid] = files, title
        history.append(oid)
        return oid

    def resolved(self, revision: str) -> str | None:
        """The commit of a branch or a commit's own name."""
        return (
            self.branches[revision][-1] if revision in self.branches else revision if revision in self.commits else None
        )


@dataclass
class HubServer:
    """What the hub holds, what goes wrong, and what it was asked."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    times: list[tuple[str, float]] = field(default_factory=list)
    read_only: bool = False
    before_commit: Callable[[], None] | None = None
    seconds_per_upload: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def make(self, repo: str, *, private: bool = True) -> Repo:
        """A new repository, whose first commit has only git's settings, as the hub's."""
        made = self.repos[repo] = Repo(private)
        made.commit(
            "main", {".gitattributes": (b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n", False)}, "initial"
        )
        return made

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """The files of a revision, without git's settings."""
        found = self.repos[repo]
        files = found.commits[str(found.resolved(revision))][0]
        return {name: data for name, (data, _) in files.items() if name != ".gitattributes"}

    def titles(self, repo: str, revision: str = "main") -> list[str]:
        """The titles of the commits of a branch, without the first."""
        found = self.repos[repo]
        return [found.commits[oid][1] for oid in found.branches[revision]][1:]

    def asked(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(bool(re.search(pattern, request)) for request in self.requests)

    def fault(self, request: str) -> Fault | None:
        with self.lock:
            for each in self.faults:
                if each.times > 0 and re.search(each.request, request):
                    each.times -= 1
                    return each
        return None


def entry(path: str, data: bytes, large: bool) -> dict[str, Any]:
    """A file as the tree lists it: by git's hash of the blob, which for a large one is a pointer."""
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{lfs['oid']}\nsize {len(data)}\n".encode()
    blob = pointer if large else data
    oid = hashlib.sha1(b"blob %d\0" % len(blob) + blob).hexdigest()
    return {"type": "file", "path": path, "size": len(data), "oid": oid, **({"lfs": lfs} if large else {})}
