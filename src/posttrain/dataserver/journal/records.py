"""Convert requests and their results to records of the table `grades`, and back."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.schemas import Component, GradeRequest, GradeResponse, Origin, Split, Status

MAX_PROMPT_CHARS = 20_000
MAX_GOLD_CHARS = 10_000
MAX_DETAIL_CHARS = 1_000
_LARGEST_INTEGER = 2**63 - 1


# Not frozen: that would make rows three times as slow to build, which matters at ten thousand a second.
@dataclass(slots=True, kw_only=True)
class JournalRow:
    """One graded completion from the service, identified by `config_id`, `run_id`, `request_id` and `item_id`."""

    config_id: str
    run_id: str
    """Empty if the trainer names no run."""
    request_id: str
    item_id: str
    created_at: datetime
    """When it was graded, in UTC; a time without a zone is taken as UTC."""
    split: Split
    iteration: int
    stage: str
    dataset: str
    sample_id: str
    row_key: str
    """Identifies the row of the data set whatever its content; adaptive sampling keeps its statistics by it."""
    task: str | None = None
    """The row's task; None if its data set has none."""
    slot: int | None
    attempt: int = 0
    """0, or the number of the substitute that the row is."""
    lowest_version: int | None = None
    """Of the weights that sampled the completion, in optimizer steps; None, as the next three, if the trainer did not
    say."""
    highest_version: int | None = None
    temperature: float | None = None
    origin: Origin | None = None
    prompt: str
    """The text of the last user message."""
    gold: object = None
    """The right answer: anything that JSON can hold."""
    completion: str
    completion_digest: str
    """SHA-256 of all that the model wrote, in UTF-8, as hex digits."""
    completion_tokens: int | None = None
    truncated: bool | None = None
    """Whether generation stopped at its limit; None if the trainer did not say."""
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
    """One graded completion as read back; long texts lack their middle."""

    id: int
    completion_whole: bool
    """Whether `completion` is all that the model wrote: not if it was too long or held what no database can store."""


def journal_rows(
    request: GradeRequest,
    targets: Sequence[Target | str],
    digests: Sequence[str],
    response: GradeResponse,
    milliseconds: float,
) -> list[JournalRow]:
    """One row for each completion whose target is known."""
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
            task=target.task,
            slot=item.slot,
            attempt=item.attempt,
            lowest_version=min(item.rollout.versions) if item.rollout else None,
            highest_version=max(item.rollout.versions) if item.rollout else None,
            temperature=item.rollout.temperature if item.rollout else None,
            origin=item.rollout.origin if item.rollout else None,
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
    """A row reduced to what the journal keeps, so that the queue takes no more memory than that."""

    row: JournalRow
    is_whole: bool
    """Whether the row still has the whole completion."""


def shortened(row: JournalRow, max_completion_chars: int) -> QueuedRow:
    """Cut the middle out of a completion that is too long to be kept whole."""
    if len(row.completion) <= max_completion_chars:
        return QueuedRow(row, is_whole=True)
    return QueuedRow(replace(row, completion=without_middle(row.completion, max_completion_chars)), is_whole=False)


def without_middle(text: str, limit: int) -> str:
    """The text; if longer than `limit`, `limit` characters of its head and tail around a note on what is missing."""
    if len(text) <= limit:
        return text
    head = limit // 2
    tail = limit - head
    return f"{text[:head]}\n[… {len(text) - limit} characters are not kept …]\n{text[-tail:]}"


def record_of(queued: QueuedRow) -> dict[str, object]:
    """The values for the columns of `grades`, without the id."""
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
        "task": None if row.task is None else storable(row.task),
        "slot": _integer(row.slot),
        "attempt": _integer(row.attempt),
        "lowest_version": _integer(row.lowest_version),
        "highest_version": _integer(row.highest_version),
        "temperature": _finite(row.temperature),
        "origin": row.origin,
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
    """Convert a record that was read back to a row."""
    components = {name: Component.model_validate(component) for name, component in record["components"].items()}
    return StoredRow(**{**record, "created_at": utc(record["created_at"]), "components": components})


def storable(text: str) -> str:
    """The text with NUL characters and lone surrogates replaced, which PostgreSQL and UTF-8 cannot store."""
    if text.isascii():
        return text.replace("\0", "␀")
    return text.replace("\0", "␀").encode("utf-8", "replace").decode()


def utc(time: datetime) -> datetime:
    """The same moment in UTC; a time without a zone, as SQLite returns it, is already in UTC."""
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
    """The gold as JSON data; if too long, the head and tail of its JSON text."""
    if isinstance(gold, str) and len(gold) < MAX_GOLD_CHARS // 2:
        return storable(gold)
    try:
        written = storable(json.dumps(gold, ensure_ascii=False, allow_nan=False, default=str))
    except (TypeError, ValueError, RecursionError):
        return f"not stored: a {type(gold).__name__} that cannot be written as JSON"
    return without_middle(written, MAX_GOLD_CHARS) if len(written) > MAX_GOLD_CHARS else json.loads(written)
