"""Records of the table `grades`, made from a request and its results."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.schemas import Component, GradeRequest, GradeResponse, Split, Status

MAX_PROMPT_CHARS = 20_000
MAX_GOLD_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000
_LARGEST_INTEGER = 2**63 - 1


# Not frozen: that would make one three times as slow to build, which counts at ten thousand a second.
@dataclass(slots=True, kw_only=True)
class JournalRow:
    """One graded completion, as the service hands it over. The same four ids name the same row."""

    config_id: str
    run_id: str
    """Empty where the trainer names no run."""
    request_id: str
    item_id: str
    created_at: datetime
    """When it was graded, in UTC; a time without a zone is taken for UTC."""
    split: Split
    iteration: int
    stage: str
    dataset: str
    sample_id: str
    row_key: str
    """Names the row of the data set, whatever its content; statistics for adaptive sampling go by it."""
    slot: int | None
    prompt: str
    """The text of the last user message."""
    gold: object = None
    """The right answer: anything that JSON can hold."""
    completion: str
    completion_digest: str
    """SHA-256 of all that the model wrote (UTF-8), as hex digits."""
    completion_tokens: int | None = None
    truncated: bool | None = None
    """Whether generation stopped at its limit, if the trainer told it."""
    status: Status
    reason: str = ""
    """Why there is no reward."""
    reward: float | None
    """None unless the status is ok."""
    components: Mapping[str, Component] = field(default_factory=dict)
    """By grader."""
    milliseconds: float
    """From the request's arrival to this result."""


@dataclass(slots=True, kw_only=True)
class StoredRow(JournalRow):
    """One graded completion, as it is read back: long texts have lost their middle."""

    id: int
    completion_whole: bool
    """Whether `completion` is all that the model wrote; false where it was too long, or held what no database takes."""


def journal_rows(
    request: GradeRequest,
    targets: Sequence[Target | str],
    digests: Sequence[str],
    response: GradeResponse,
    milliseconds: float,
) -> list[JournalRow]:
    """One row for each completion of which it is known what it answers."""
    now = datetime.now(UTC)
    return [
        JournalRow(
            config_id=response.config_id,
            run_id=request.run_id,
            request_id=request.request_id,
            item_id=item.item_id,
            created_at=now,
            split="validation" if target.is_held_out else "train",
            iteration=request.iteration,
            stage=response.stage,
            dataset=target.dataset,
            sample_id=item.sample_id,
            row_key=target.row.key,
            slot=item.slot,
            prompt=target.prompt,
            gold=target.gold,
            completion=item.completion,
            completion_digest=digest,
            completion_tokens=item.completion_tokens,
            truncated=item.truncated,
            status=result.status,
            reason=result.reason,
            reward=result.reward,
            components=result.components,
            milliseconds=milliseconds,
        )
        for item, target, digest, result in zip(request.items, targets, digests, response.results, strict=True)
        if isinstance(target, Target)
    ]


class QueuedRow(NamedTuple):
    """A row that takes no more memory than is kept of it."""

    row: JournalRow
    is_whole: bool
    """Whether the row still has all of the completion."""


def shortened(row: JournalRow, max_completion_chars: int) -> QueuedRow:
    """Take the middle out of a completion that is too long to be kept."""
    if len(row.completion) <= max_completion_chars:
        return QueuedRow(row, is_whole=True)
    return QueuedRow(replace(row, completion=without_middle(row.completion, max_completion_chars)), is_whole=False)


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
    return {
        "created_at": utc(row.created_at),
        "config_id": storable(row.config_id),
        "run_id": storable(row.run_id),
        "request_id": storable(row.request_id),
        "item_id": storable(row.item_id),
        "split": row.split,
        "iteration": _integer(row.iteration),
        "stage": storable(row.stage),
        "dataset": storable(row.dataset),
        "sample_id": storable(row.sample_id),
        "row_key": storable(row.row_key),
        "slot": _integer(row.slot),
        "status": row.status,
        "reward": _finite(row.reward),
        "milliseconds": _finite(row.milliseconds) or 0.0,
        "completion_tokens": _integer(row.completion_tokens),
        "truncated": row.truncated,
        "completion_digest": row.completion_digest,
        "completion_whole": queued.is_whole and kept == row.completion,
        "reason": _detail(row.reason),
        "components": {storable(name): _component(component) for name, component in row.components.items()},
        "gold": _bounded_gold(row.gold),
        "prompt": storable(without_middle(row.prompt, MAX_PROMPT_CHARS)),
        "completion": kept,
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


def _integer(number: int | None) -> int | None:
    return None if number is None else min(number, _LARGEST_INTEGER)


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
