"""Rows for tests."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from posttrain.dataserver.graders.text.completions import completion_digest
from posttrain.dataserver.journal.reader import JournalReader, RowFilter
from posttrain.dataserver.journal.records import JournalRow, StoredRow
from posttrain.dataserver.schemas import Component

ROW = JournalRow(
    config_id="c1",
    run_id="run",
    request_id="q0",
    item_id="0",
    created_at=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
    split="train",
    iteration=0,
    stage="first",
    dataset="sums",
    sample_id="sums:0:abc",
    row_key="sums:0",
    slot=0,
    prompt="1 + 1?",
    gold="2",
    completion="It is 2.",
    completion_digest=completion_digest("It is 2."),
    status="ok",
    reward=1.0,
    components={"exact": Component(score=1.0, weight=1.0, status="ok", ms=0.5)},
    milliseconds=2.0,
)


def row(number: int = 0, /, **changes: Any) -> JournalRow:
    """A row with its own request id and the given changes."""
    digest = completion_digest(changes.get("completion", ROW.completion))
    return replace(ROW, **{"request_id": f"q{number}", "completion_digest": digest, **changes})


def rewarded(*rewards: float | None, **changes: Any) -> list[JournalRow]:
    """Rows of one request with these rewards; None abstains."""
    return [
        row(**{"item_id": str(number), "reward": reward, "status": "abstain" if reward is None else "ok", **changes})
        for number, reward in enumerate(rewards)
    ]


def everything(reader: JournalReader) -> list[StoredRow]:
    """All rows, oldest first."""
    return list(reader.rows(RowFilter()))
