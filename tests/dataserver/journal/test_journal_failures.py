"""Full disk, missing or busy database, killed server: grading continues and few rows are lost."""

import json
import logging
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import journal_processes
import pytest
from journal_processes import wait_for
from journal_rows import everything, row
from sqlalchemy import Engine, event

from dataserver.postgres import postgres_server
from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import open_database
from posttrain.dataserver.journal.reader import JournalReader
from posttrain.dataserver.journal.writer import JournalWriter
from posttrain.errors import ServerError

PROGRAM = [sys.executable, journal_processes.__file__]
Small = tuple[JournalWriter, Engine, JournalConfig]


@pytest.fixture
def small(sqlite_config: JournalConfig) -> Iterator[Small]:
    """A writer that queues up to 100 rows, with its config and its database, which `fill` makes full."""
    config = sqlite_config.model_copy(update={"max_queued_rows": 100, "batch_seconds": 0.02})
    engine = open_database(config)
    writer = JournalWriter(engine, config)
    yield writer, engine, config
    writer.close(timeout=0)
    engine.dispose()


def fill(engine: Engine) -> None:
    """Stop the database from growing: SQLite then fails as on a full disk."""
    event.listen(engine, "connect", _no_more_pages)
    engine.dispose()


def make_room(engine: Engine) -> None:
    event.remove(engine, "connect", _no_more_pages)
    engine.dispose()


def _no_more_pages(raw: sqlite3.Connection, _: object) -> None:
    raw.execute("PRAGMA max_page_count=1")  # SQLite raises this to the current size


def test_rows_wait_while_the_disk_is_full_and_are_written_when_there_is_room(
    small: Small, caplog: pytest.LogCaptureFixture
):
    writer, engine, _ = small
    fill(engine)
    with caplog.at_level(logging.WARNING):
        writer.add(row(number, completion="c" * 9000) for number in range(50))
        stats = wait_for(writer, lambda stats: stats.last_error is not None)
        assert stats == (0, 0, 50, "database or disk is full")
        time.sleep(1.2)  # long enough for a retry
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "cannot be written (database or disk is full); 50 rows are waiting, 0 were dropped" in caplog.text
    make_room(engine)
    assert writer.flush()
    assert len(everything(JournalReader(engine))) == 50
    assert writer.stats() == (50, 0, 0, None)


def test_beyond_the_bound_new_rows_are_dropped_and_counted_and_nobody_waits(small: Small):
    writer, engine, _ = small
    fill(engine)
    started = time.monotonic()
    for start in range(0, 1000, 10):
        writer.add(row(number) for number in range(start, start + 10))
    assert time.monotonic() - started < 1
    assert writer.stats()[:3] == (0, 900, 100)
    make_room(engine)
    assert writer.flush()
    assert [stored.request_id for stored in everything(JournalReader(engine))] == [
        f"q{number}" for number in range(100)
    ]


def test_durable_rows_fail_loudly_and_whole(small: Small):
    writer, engine, _ = small
    fill(engine)
    with pytest.raises(ServerError, match="journal: 40 rows cannot be written: database or disk is full"):
        writer.add_durable(row(number, completion="c" * 9000) for number in range(40))
    assert everything(JournalReader(engine)) == []
    assert writer.stats().written == 0


def test_closing_a_writer_whose_database_fails_ends_in_time_and_counts_what_is_lost(
    small: Small, caplog: pytest.LogCaptureFixture
):
    writer, engine, _ = small
    fill(engine)
    writer.add(row(number, completion="c" * 9000) for number in range(50))
    started = time.monotonic()
    writer.close(timeout=0.5)
    assert time.monotonic() - started < 2.5
    assert writer.stats()[:3] == (0, 50, 0)
    assert "closed with 50 rows not written: database or disk is full" in caplog.text


def test_a_row_that_the_database_refuses_costs_only_itself(small: Small, caplog: pytest.LogCaptureFixture):
    writer, engine, _ = small
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER no BEFORE INSERT ON grades WHEN NEW.item_id = 'bad' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
    writer.add([row(0), row(1, item_id="bad"), row(2)])
    assert writer.flush()
    assert [stored.request_id for stored in everything(JournalReader(engine))] == ["q0", "q2"]
    assert writer.stats() == (2, 1, 0, None)
    assert "a row cannot be written and is dropped" in caplog.text


def test_a_writer_waits_for_another_process_that_holds_the_lock(small: Small):
    writer, engine, config = small
    other = sqlite3.connect(config.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer.add([row()])
    assert not writer.flush(timeout=0.5)
    assert writer.stats()[:3] == (0, 0, 1)
    other.execute("ROLLBACK")
    other.close()
    assert writer.flush()
    assert len(everything(JournalReader(engine))) == 1


def test_a_disk_that_is_really_full_costs_only_what_does_not_fit_into_memory(tmp_path: Path):
    command = ["unshare", "--user", "--map-root-user", "--mount", *PROGRAM, "fill_the_disk", str(tmp_path)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert finished.returncode == 0, finished.stderr
    full, fuller, after = json.loads(finished.stdout)
    assert full == [0, 0, 20, "database or disk is full"]
    assert fuller == [0, 20, 30, "database or disk is full"]
    assert after == [30, 20, 0, None]


@pytest.mark.postgres
def test_rows_wait_while_postgresql_is_gone_and_are_written_when_it_is_back():
    with postgres_server() as server:
        config = JournalConfig(url=server.new_database(), batch_seconds=0.02)
        engine = open_database(config)
        writer = JournalWriter(engine, config)
        writer.add([row(0)])
        assert writer.flush()
        server.stop()
        writer.add([row(1)])
        assert "refused" in (wait_for(writer, lambda stats: stats.last_error is not None).last_error or "")
        with pytest.raises(ServerError, match=r"1 rows cannot be written: .*refused"):
            writer.add_durable([row(2)])
        with pytest.raises(ServerError, match=r"graded completions cannot be read: .*refused"):
            everything(JournalReader(engine))
        server.start()
        assert writer.flush()
        writer.add_durable([row(2)])
        assert [stored.request_id for stored in everything(JournalReader(engine))] == ["q0", "q1", "q2"]
        writer.close()
        engine.dispose()


def test_killing_the_server_loses_only_the_last_moments(config: JournalConfig):
    open_database(config).dispose()
    command = [*PROGRAM, "write_for_ever", config.model_dump_json()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    started = time.monotonic()
    while time.monotonic() < started + 2.5:
        lines.append(process.stdout.readline())
    killed = time.monotonic()
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    assert process.wait() == -signal.SIGKILL

    added = [(int(count), float(at)) for count, at in (line.split() for line in lines if line.endswith("\n"))]
    # The batch interval, and as much again to write a batch to a slow disk.
    old = max(count for count, at in added if at < killed - 2 * config.batch_seconds)
    engine = open_database(config)
    kept = [int(stored.request_id[1:]) for stored in everything(JournalReader(engine))]
    if config.url is None:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalars().all() == ["ok"]
    engine.dispose()
    assert old > 500
    assert kept == list(range(len(kept)))
    assert len(kept) >= old
