"""The one statement that writes grades."""

from collections.abc import Sequence

from sqlalchemy import Connection

from toolkit.dataserver.journal.database import insert_into
from toolkit.dataserver.journal.records import QueuedRow, record_of
from toolkit.dataserver.journal.tables import grades

_KEY = ("config_id", "run_id", "request_id", "item_id")
_REST = [column.name for column in grades.columns if column.name not in (*_KEY, "id")]


def insert_rows(connection: Connection, rows: Sequence[QueuedRow]) -> None:
    """Write rows. Of a repeated request the first row stays, unless it had no reward and the new one has."""
    if not rows:
        return
    statement = insert_into(connection, grades)
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=_KEY,
        set_={name: new[name] for name in _REST},
        where=(grades.c.status != "ok") & (new.status == "ok"),
    )
    connection.execute(statement, [record_of(row) for row in rows])
