"""From a journal row to a record of the table `grades`, and back."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from toolkit.dataserver.journal.rows import JournalRow, StoredRow
from toolkit.dataserver.schemas import Component

MAX_PROMPT_CHARS = 20_000
MAX_GOLD_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000
_LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class QueuedRow:
    """A row that takes no more memory than is kept of it."""

    row: JournalRow
    digest: str | None
    """Of the whole completion; None while the row still has all of it."""


def shortened(row: JournalRow, max_completion_chars: int) -> QueuedRow:
    """Take the middle out of a completion that is too long to be kept."""
    if len(row.completion) <= max_completion_chars:
        return QueuedRow(row, None)
    short = replace(row, completion=without_middle(row.completion, max_completion_chars))
    return QueuedRow(short, _digest(row.completion))


def without_middle(text: str, limit: int) -> str:
    """The text, or its head and tail of `limit` characters together around a note on what is missing."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[… {len(text) - limit} characters are not kept …]\n{text[-tail:]}"


def record_of(queued: QueuedRow) -> dict[str, object]:
    """The columns of `grades`, without the id."""
    row = queued.row
    kept = storable(row.completion)
    record = {name: _column(getattr(row, name)) for name in _PLAIN}
    return record | {
        "created_at": utc(row.created_at),
        "reward": _finite(row.reward),
        "milliseconds": _finite(row.milliseconds) or 0.0,
        "completion": kept,
        "completion_digest": queued.digest or _digest(row.completion),
        "completion_whole": queued.digest is None and kept == row.completion,
        "prompt": storable(without_middle(row.prompt, MAX_PROMPT_CHARS)),
        "gold": _bounded_gold(row.gold),
        "reason": _detail(row.reason),
        "components": {storable(name): _component(component) for name, component in row.components.items()},
    }


def stored_row(record: Mapping[str, Any]) -> StoredRow:
    """What was written."""
    components = {name: Component.model_validate(component) for name, component in record["components"].items()}
    return StoredRow(**{**record, "created_at": utc(record["created_at"]), "components": components})


def storable(text: str) -> str:
    """The text without what PostgreSQL and UTF-8 do not take: NUL characters and halves of surrogate pairs."""
    if text.isascii():
        return text.replace("\0", "␀")
    return text.replace("\0", "␀").encode("utf-8", "replace").decode()


def utc(time: datetime) -> datetime:
    """The same moment in UTC; a time without a zone, as SQLite gives it back, is in UTC already."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_WORKED_ON = {"created_at", "reward", "milliseconds", "completion", "prompt", "gold", "reason", "components"}
_PLAIN = [field.name for field in fields(JournalRow) if field.name not in _WORKED_ON]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _column(value: object) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return min(value, _LARGEST_INTEGER)
    return value


def _detail(text: str) -> str:
    return storable(without_middle(text, MAX_DETAIL_CHARS))


def _finite(number: float | None) -> float | None:
    return number if number is not None and isfinite(number) else None


def _component(component: Component) -> dict[str, object]:
    return {
        "score": _finite(component.score),
        "weight": _finite(component.weight),
        "status": component.status,
        "ms": _finite(component.ms) or 0.0,
        "detail": _detail(component.detail),
    }


def _bounded_gold(gold: object) -> object:
    """The gold as JSON data; one that is too long becomes the head and tail of its JSON text."""
    if isinstance(gold, str) and len(gold) < MAX_GOLD_CHARS // 2:
        return storable(gold)
    try:
        written = storable(json.dumps(gold, ensure_ascii=False, allow_nan=False, default=str))
    except (TypeError, ValueError, RecursionError):
        return f"not kept: a {type(gold).__name__} that JSON cannot hold"
    return without_middle(written, MAX_GOLD_CHARS) if len(written) > MAX_GOLD_CHARS else json.loads(written)
