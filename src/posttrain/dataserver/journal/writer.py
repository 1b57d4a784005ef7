"""Write graded completions to the journal in the background; an error there never fails a grading."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Engine
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError

from posttrain.dataserver.journal.config import JournalConfig
from posttrain.dataserver.journal.database import connected, grades, reason_of
from posttrain.dataserver.journal.records import JournalRow, QueuedRow, record_of, shortened

_BATCH_ROWS = 1000
_SECONDS_BETWEEN_TRIES = 1.0
_SECONDS_BETWEEN_WARNINGS = 60.0
_KEY = ("config_id", "run_id", "request_id", "item_id")

# One statement for many rows: the database then works without this process's interpreter, which serves requests
# meanwhile. PostgreSQL accepts 65,535 parameters in a statement, SQLite 32,766.
_ROWS_PER_STATEMENT = 500

_log = logging.getLogger(__name__)


class JournalStats(NamedTuple):
    """Counters since the writer was created."""

    written: int
    """Rows that the database accepted, repeated ones included."""
    dropped: int
    queued: int
    last_error: str | None
    """Why the last write failed; None once one succeeded again."""


class JournalWriter:
    """A bounded queue, and a thread that empties it into the database in batches."""

    def __init__(self, engine: Engine, config: JournalConfig):
        self._engine = engine
        self._config = config
        self._queue: deque[QueuedRow] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._hurried = 0
        self._written = self._dropped = 0
        self._added = self._settled = 0
        self._last_error: str | None = None
        self._next_warning = time.monotonic()
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)
        self._thread.start()

    def add(self, rows: Iterable[JournalRow]) -> None:
        """Queue rows; those that do not fit are dropped and counted. Neither waits nor raises."""
        bounded = [shortened(row, self._config.max_completion_chars) for row in rows]
        with self._changed:
            room = 0 if self._closing else max(0, self._config.max_queued_rows - len(self._queue))
            self._queue.extend(bounded[:room])
            self._added += min(room, len(bounded))
            self._dropped += max(0, len(bounded) - room)
            self._changed.notify_all()

    def add_durable(self, rows: Iterable[JournalRow]) -> None:
        """Write rows now; they are on disk when this returns.

        Raises:
            ServerError: the database fails; none of the rows is written.
        """
        bounded = [shortened(row, self._config.max_completion_chars) for row in rows]
        purpose = f"{len(bounded)} rows cannot be written"
        with connected(self._engine, purpose, survives_power_cuts=True) as connection, connection.begin():
            insert_rows(connection, bounded)
        with self._changed:
            self._written += len(bounded)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all rows added so far are written; False if some are not after `timeout` seconds."""
        with self._changed:
            goal = self._added
            self._hurried += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._settled >= goal, timeout)
            finally:
                self._hurried -= 1

    def close(self, timeout: float = 10.0) -> None:
        """Write the queued rows and stop; rows not written after `timeout` seconds are dropped."""
        self.flush(timeout)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=1.0)
        with self._changed:
            if self._queue:
                _log.error("journal: closed with %d rows not written: %s", len(self._queue), self._last_error)
                self._dropped += len(self._queue)
                self._queue.clear()

    def stats(self) -> JournalStats:
        """The current counters."""
        with self._changed:
            return JournalStats(self._written, self._dropped, len(self._queue), self._last_error)

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                refused = self._deliver(batch)
            except SQLAlchemyError as error:
                self._wait_out(reason_of(error))
            else:
                self._settle(len(batch), refused)

    def _next_batch(self) -> list[QueuedRow]:
        """The oldest rows, once they have waited long enough; they stay queued. Empty when the thread should end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._closing:
                self._changed.wait_for(self._is_urgent, self._config.batch_seconds)
            given_up = self._closing and self._last_error
            return [] if given_up else list(islice(self._queue, _BATCH_ROWS))

    def _is_urgent(self) -> bool:
        return self._closing or self._hurried > 0 or len(self._queue) >= _BATCH_ROWS

    def _deliver(self, batch: Sequence[QueuedRow]) -> int:
        """Write a batch and return how many of its rows can never be written.

        Raises:
            SQLAlchemyError: the database cannot be written to now.
        """
        try:
            self._write(batch)
            return 0
        except Exception as error:
            if _is_outage(error):
                raise
        return sum(not self._takes(row) for row in batch)

    def _takes(self, row: QueuedRow) -> bool:
        try:
            self._write([row])
        except Exception as error:
            if _is_outage(error):
                raise
            with self._changed:
                self._warn(f"a row cannot be written and is dropped: {reason_of(error)}")
            return False
        return True

    def _write(self, rows: Sequence[QueuedRow]) -> None:
        with self._engine.begin() as connection:
            insert_rows(connection, rows)

    def _settle(self, count: int, refused: int) -> None:
        with self._changed:
            for _ in range(min(count, len(self._queue))):
                self._queue.popleft()
            self._written += count - refused
            self._dropped += refused
            self._settled += count
            self._last_error = None
            self._changed.notify_all()

    def _wait_out(self, reason: str) -> None:
        """Leave the rows queued, and wait before the next try."""
        with self._changed:
            self._last_error = reason
            waiting, dropped = len(self._queue), self._dropped
            self._warn(f"cannot be written ({reason}); {waiting} rows are waiting, {dropped} were dropped so far")
            self._changed.wait_for(lambda: self._closing, _SECONDS_BETWEEN_TRIES)

    def _warn(self, message: str) -> None:
        """Log a warning, at most one a minute."""
        if time.monotonic() >= self._next_warning:
            self._next_warning = time.monotonic() + _SECONDS_BETWEEN_WARNINGS
            _log.warning("journal: %s; grading continues", message)


def _is_outage(error: Exception) -> bool:
    """Whether the database is at fault, rather than one of the rows."""
    if isinstance(error, DataError | IntegrityError):
        return False
    return isinstance(error, SQLAlchemyError) and (
        isinstance(error, DBAPIError) or not isinstance(error, StatementError)
    )


def insert_rows(connection: Connection, rows: Sequence[QueuedRow]) -> None:
    """Write rows. For a repeated request the existing row stays, unless it has no reward and the new one has."""
    processors = _processors(connection.dialect)
    single = _without_repeats(rows)
    for start in range(0, len(single), _ROWS_PER_STATEMENT):
        records = [record_of(row) for row in single[start : start + _ROWS_PER_STATEMENT]]
        for record in records:
            for name, process in processors:
                record[name] = process(record[name])
        statement = _statement(connection.dialect.name, tuple(records[0]), len(records))
        connection.exec_driver_sql(statement, tuple(value for record in records for value in record.values()))


def _without_repeats(rows: Iterable[QueuedRow]) -> list[QueuedRow]:
    """Drop repeated rows by the same rule: PostgreSQL refuses a statement that writes a row twice."""
    kept: dict[tuple[str, ...], QueuedRow] = {}
    for queued in rows:
        row = queued.row
        key = (row.config_id, row.run_id, row.request_id, row.item_id)
        if key not in kept or (kept[key].row.status != "ok" and row.status == "ok"):
            kept[key] = queued
    return list(kept.values())


@lru_cache
def _processors(dialect: Dialect) -> list[tuple[str, Callable[[Any], Any]]]:
    """The columns whose values the driver does not take as they are, and the functions that convert them."""
    found = [(column.name, column.type.dialect_impl(dialect).bind_processor(dialect)) for column in grades.columns]
    return [(name, process) for name, process in found if process is not None]


@lru_cache(maxsize=64)
def _statement(dialect_name: str, names: Sequence[str], rows: int) -> str:
    mark = "%s" if dialect_name == "postgresql" else "?"
    values = ", ".join([f"({', '.join([mark] * len(names))})"] * rows)
    updates = ", ".join(f"{name} = excluded.{name}" for name in names if name not in _KEY)
    return (
        f"INSERT INTO grades ({', '.join(names)}) VALUES {values} ON CONFLICT ({', '.join(_KEY)}) "
        f"DO UPDATE SET {updates} WHERE grades.status <> 'ok' AND excluded.status = 'ok'"
    )
