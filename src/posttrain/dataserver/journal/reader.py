"""Reads graded completions back."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Engine, Executable, Select, func, select

from posttrain.dataserver.journal.database import connected
from posttrain.dataserver.journal.records import storable, stored_row, utc
from posttrain.dataserver.journal.rows import StoredRow
from posttrain.dataserver.journal.tables import grades
from posttrain.dataserver.schemas import Split, Status

_CHUNK = 500
_EXCERPT_CHARS = 240


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Which rows are meant; None passes all."""

    run_id: str | None = None
    dataset: str | None = None
    split: Split | None = None
    status: Status | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """As SQL."""
        equal = ("run_id", "dataset", "split", "status")
        chosen = [grades.c[name] == storable(value) for name in equal if (value := getattr(self, name)) is not None]
        if self.first_iteration is not None:
            chosen.append(grades.c.iteration >= self.first_iteration)
        if self.last_iteration is not None:
            chosen.append(grades.c.iteration <= self.last_iteration)
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExcerpt:
    """One line of a table of completions."""

    id: int
    created_at: datetime
    iteration: int
    split: str
    stage: str
    dataset: str
    status: str
    reward: float | None
    prompt: str
    """Its first 240 characters."""
    completion: str
    """Its first 240 characters."""


class JournalReader:
    """Questions about single rows; those about many are in `summaries`. All raise ServerError without a database."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def rows(self, chosen: RowFilter) -> Iterator[StoredRow]:
        """All chosen rows, oldest first, a few hundred in memory at a time; rows that come meanwhile may be there."""
        last = 0
        while True:
            query = select(grades).where(grades.c.id > last, *chosen.conditions()).order_by(grades.c.id).limit(_CHUNK)
            chunk = [stored_row(record) for record in self._records(query)]
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            last = chunk[-1].id

    def row(self, row_id: int) -> StoredRow | None:
        """The row of that id."""
        records = self._records(select(grades).where(grades.c.id == row_id))
        return stored_row(records[0]) if records else None

    def page(self, chosen: RowFilter, limit: int, before: int | None = None) -> list[RowExcerpt]:
        """The newest of the chosen rows, newest first; `before` is the last id of the page before."""
        query = _excerpts().where(*chosen.conditions()).order_by(grades.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(grades.c.id < before)
        return [RowExcerpt(**{**record, "created_at": utc(record["created_at"])}) for record in self._records(query)]

    def _records(self, query: Executable) -> list[dict[str, Any]]:
        with connected(self._engine, "graded completions cannot be read") as connection:
            return [row._asdict() for row in connection.execute(query)]


def _excerpts() -> Select[*tuple[Any, ...]]:
    names = ("id", "created_at", "iteration", "split", "stage", "dataset", "status", "reward")
    texts = [func.substr(grades.c[name], 1, _EXCERPT_CHARS).label(name) for name in ("prompt", "completion")]
    return select(*(grades.c[name] for name in names), *texts)
