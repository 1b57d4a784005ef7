"""How completions become requests: JSON that the server can read, within its limits, under ids that stay."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.dataserver.schemas import GradeItem, Limits

_LONGEST_ID = 200
_CLOSING = b"]}"


@dataclass(frozen=True)
class Label:
    """What a call to `/grade` is, apart from the completions."""

    iteration: int
    name: str
    """Told apart from the other calls of the run, as "train-12-g3"."""
    run_id: str
    rank: int
    config_id: str

    def opening(self, request_id: str) -> bytes:
        """The body of a request up to its items."""
        head = {
            "iteration": self.iteration,
            "request_id": request_id,
            "run_id": self.run_id,
            "config_id": self.config_id,
            "items": [],
        }
        return encoded(head)[: -len(_CLOSING)]

    def request_id(self, chunk: int, items: Sequence[bytes]) -> str:
        """The id of one request: the same for the same content, also after a resume, and different for any other.

        A run that goes on from a checkpoint may write other completions than the first time. Under an id made of the
        names alone the server would refuse them.
        """
        parts = [encoded([self.run_id, self.rank, self.name, chunk, self.iteration]), *items]
        digest = hashlib.blake2b(b"\n".join(parts), digest_size=8).hexdigest()
        return _shortened(f"{self.run_id}/{self.name}", f"/{self.rank}.{chunk}-{digest}")


@dataclass(frozen=True)
class GradeCall:
    """One request to `/grade`."""

    request_id: str
    items: Sequence[GradeItem]
    body: bytes


def grade_calls(label: Label, items: Sequence[GradeItem], limits: Limits) -> Iterator[GradeCall | GradeItem]:
    """The items in requests that the server takes, in their order; an item that fits into none comes by itself."""
    # A long id is cut before its number, so that its bytes may be most for the smallest number.
    longest_ids = [label.request_id(number, []) for number in (0, len(items))]
    room = limits.max_body_bytes - max(len(label.opening(each)) for each in longest_ids) - len(_CLOSING)
    chunk: list[GradeItem] = []
    parts: list[bytes] = []
    number = size = 0
    for item in items:
        part = encoded(item.model_dump(exclude_none=True))
        fits = len(part) <= room
        if chunk and (not fits or len(chunk) == limits.max_items or size + len(part) > room):
            yield _call(label, number, chunk, parts)
            number, size, chunk, parts = number + 1, 0, [], []
        if not fits:
            yield item
            continue
        chunk.append(item)
        parts.append(part)
        size += len(part) + 1  # and a comma
    if chunk:
        yield _call(label, number, chunk, parts)


def encoded(value: Any) -> bytes:
    """The value as JSON in UTF-8, each half surrogate pair as U+FFFD: what the server would read in its place."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def bounded_run_id(run_id: str) -> str:
    """The name of a run, as short as the protocol wants it."""
    if len(run_id) <= _LONGEST_ID:
        return run_id
    digest = hashlib.blake2b(encoded(run_id), digest_size=8).hexdigest()
    return _shortened(run_id, f"-{digest}")


def _call(label: Label, number: int, items: Sequence[GradeItem], parts: Sequence[bytes]) -> GradeCall:
    request_id = label.request_id(number, parts)
    return GradeCall(request_id, items, label.opening(request_id) + b",".join(parts) + _CLOSING)


def _shortened(head: str, tail: str) -> str:
    return head[: _LONGEST_ID - len(tail)] + tail
