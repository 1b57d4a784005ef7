"""The one statement that writes grades."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect

from posttrain.dataserver.journal.records import QueuedRow, record_of
from posttrain.dataserver.journal.tables import grades

_KEY = ("config_id", "run_id", "request_id", "item_id")
_COLUMNS = [column for column in grades.columns if column.name != "id"]

# One statement for many rows: the database then works without this process's interpreter, which serves requests
# meanwhile. PostgreSQL takes 65,535 parameters in a statement, SQLite 32,766.
_ROWS_PER_STATEMENT = 500


def insert_rows(connection: Connection, rows: Sequence[QueuedRow]) -> None:
    """Write rows. Of a repeated request the first row stays, unless it had no reward and the new one has."""
    processors = _processors(connection.dialect)
    single = _without_repeats(rows)
    for start in range(0, len(single), _ROWS_PER_STATEMENT):
        records = [record_of(row) for row in single[start : start + _ROWS_PER_STATEMENT]]
        values = tuple(process(record[name]) for record in records for name, process in processors)
        connection.exec_driver_sql(_statement(connection.dialect.name, len(records)), values)


def _without_repeats(rows: Iterable[QueuedRow]) -> list[QueuedRow]:
    """PostgreSQL refuses a statement that writes a row twice."""
    kept: dict[tuple[str, ...], QueuedRow] = {}
    for queued in rows:
        row = queued.row
        key = (row.config_id, row.run_id, row.request_id, row.item_id)
        if key not in kept or (kept[key].row.status != "ok" and row.status == "ok"):
            kept[key] = queued
    return list(kept.values())


@lru_cache
def _processors(dialect: Dialect) -> list[tuple[str, Callable[[Any], Any]]]:
    """Per column its name, and what makes of a value one that the driver takes."""
    found = [(column.name, column.type.dialect_impl(dialect).bind_processor(dialect)) for column in _COLUMNS]
    return [(name, process or _as_it_is) for name, process in found]


def _as_it_is(value: Any) -> Any:
    return value


@lru_cache(maxsize=64)
def _statement(dialect_name: str, rows: int) -> str:
    mark = "%s" if dialect_name == "postgresql" else "?"
    names = [column.name for column in _COLUMNS]
    values = ", ".join([f"({', '.join([mark] * len(names))})"] * rows)
    updates = ", ".join(f"{name} = excluded.{name}" for name in names if name not in _KEY)
    return (
        f"INSERT INTO grades ({', '.join(names)}) VALUES {values} ON CONFLICT ({', '.join(_KEY)}) "
        f"DO UPDATE SET {updates} WHERE grades.status <> 'ok' AND excluded.status = 'ok'"
    )
