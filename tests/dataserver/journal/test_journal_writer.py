"""Added rows are written once, in the background or immediately."""

import hashlib
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from journal_rows import everything, rewarded, row
from sqlalchemy import Engine

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.dataserver.schemas import Component


def test_a_row_comes_back_as_it_was_added(writer: JournalWriter, reader: JournalReader):
    components = {
        "exact": Component(score=0.25, weight=0.75, status="ok", ms=0.5, detail="close"),
        "judge": Component(score=None, weight=None, status="error", ms=2000.0, detail="timeout"),
    }
    added = row(
        run_id="",
        created_at=datetime(2026, 3, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
        slot=None,
        gold={"units": ["Ω", None, 1e-9]},
        completion="⟨ä\n\t🙂⟩",
        completion_tokens=7,
        truncated=True,
        reason="exact: close",
        reward=0.1 + 0.2,
        components=components,
    )
    writer.add([added])
    assert writer.flush()
    (stored,) = everything(reader)
    assert {name: value for name, value in asdict(stored).items() if name in asdict(added)} == asdict(added)
    assert stored.created_at.tzinfo is UTC and stored.created_at.hour == 12
    assert stored.completion_digest == hashlib.sha256("⟨ä\n\t🙂⟩".encode()).hexdigest()
    assert stored.completion_whole
    assert writer.stats() == (1, 0, 0, None)


def test_a_row_without_gold_or_reward_has_none(writer: JournalWriter, reader: JournalReader):
    writer.add([row(status="abstain", reward=None, gold=None)])
    assert writer.flush()
    (stored,) = everything(reader)
    assert (stored.gold, stored.reward) == (None, None)


def test_rows_are_written_without_being_asked_for_within_the_batch_time(writer: JournalWriter, reader: JournalReader):
    started = time.monotonic()
    writer.add([row()])
    while not everything(reader):
        assert time.monotonic() - started < 5
        time.sleep(0.02)
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize("batches", [1, 2], ids=["in one batch", "in two batches"])
@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (("ok", 0.25), ("ok", 0.75), 0.25),
        (("ok", 0.25), ("error", None), 0.25),
        (("error", None), ("ok", 0.75), 0.75),
        (("abstain", None), ("ok", 0.75), 0.75),
        (("abstain", None), ("error", None), "abstain"),
    ],
)
def test_a_repeated_request_changes_nothing_but_to_bring_a_missing_reward(
    first: tuple, second: tuple, kept: object, batches: int, writer: JournalWriter, reader: JournalReader
):
    rows = [row(status=status, reward=reward, reason=status) for status, reward in (first, second)]
    for batch in [rows] if batches == 1 else [[given] for given in rows]:
        writer.add(batch)
        assert writer.flush()
    (stored,) = everything(reader)
    assert kept == (stored.status if stored.reward is None else stored.reward)
    assert stored.reason == stored.status
    assert writer.stats().written == 2


def test_rows_that_differ_in_one_of_four_ids_are_different_rows(writer: JournalWriter, reader: JournalReader):
    writer.add(
        [row(), *(replace(row(), **{name: "other"}) for name in ("config_id", "run_id", "request_id", "item_id"))]
    )
    assert writer.flush()
    assert len(everything(reader)) == 5


def test_closing_writes_all_that_was_added(engine: Engine, config: JournalConfig):
    writer = JournalWriter(engine, config.model_copy(update={"batch_seconds": 60.0}))
    for start in range(0, 3000, 100):
        writer.add(row(number) for number in range(start, start + 100))
    writer.close()
    assert {stored.request_id for stored in everything(JournalReader(engine))} == {
        f"q{number}" for number in range(3000)
    }
    assert writer.stats() == (3000, 0, 0, None)


def test_what_is_added_after_closing_is_dropped_and_counted(writer: JournalWriter, reader: JournalReader):
    writer.close()
    writer.add([row()])
    assert writer.stats() == (0, 1, 0, None)
    assert writer.flush(timeout=0)
    writer.close()


def test_flushing_waits_only_for_what_was_added_before(writer: JournalWriter):
    assert writer.flush(timeout=0)
    writer.add(rewarded(1.0, 0.0))
    assert writer.flush(timeout=5)
    assert writer.stats().queued == 0


def test_durable_rows_are_there_when_the_call_returns(writer: JournalWriter, reader: JournalReader):
    writer.add_durable(rewarded(1.0, 0.5, None))
    assert [stored.reward for stored in everything(reader)] == [1.0, 0.5, None]
    writer.add_durable(rewarded(1.0, 0.5, None))
    writer.add_durable([])
    assert len(everything(reader)) == 3
    assert writer.stats().written == 6
