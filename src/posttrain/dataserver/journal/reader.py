"""Read graded completions from the journal: single rows, and summaries per iteration."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ColumnElement, Engine, Executable, Select, column, func, select

from posttrain.dataserver.journal.database import connected, grades
from posttrain.dataserver.journal.records import StoredRow, storable, stored_row, utc
from posttrain.dataserver.schemas import Split, Status

_CHUNK = 500
_EXCERPT_CHARS = 240
_OK = grades.c.status == "ok"


@dataclass(frozen=True, kw_only=True)
class RowFilter:
    """Which rows to select; a field that is None selects all."""

    run_id: str | None = None
    dataset: str | None = None
    split: Split | None = None
    status: Status | None = None
    first_iteration: int | None = None
    last_iteration: int | None = None

    def conditions(self) -> list[ColumnElement[bool]]:
        """The filter as SQL conditions."""
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
    """Queries for rows; `JournalSummaries` has those for summaries. All raise ServerError if the database fails."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def rows(self, chosen: RowFilter) -> Iterator[StoredRow]:
        """All chosen rows, oldest first, a few hundred in memory at a time; may include rows added meanwhile."""
        last = 0
        while True:
            query = select(grades).where(grades.c.id > last, *chosen.conditions()).order_by(grades.c.id).limit(_CHUNK)
            chunk = [stored_row(record) for record in self._records(query)]
            yield from chunk
            if len(chunk) < _CHUNK:
                return
            last = chunk[-1].id

    def row(self, row_id: int) -> StoredRow | None:
        """The row with this id, if there is one."""
        records = self._records(select(grades).where(grades.c.id == row_id))
        return stored_row(records[0]) if records else None

    def page(self, chosen: RowFilter, limit: int, before: int | None = None) -> list[RowExcerpt]:
        """The newest of the chosen rows, newest first; `before` is the last id of the previous page."""
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


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a trainer."""

    run_id: str
    rows: int
    last_iteration: int
    last_id: int
    """Of its newest row."""


@dataclass(frozen=True, slots=True)
class RewardCell:
    """The rewards of one data set in the `width` iterations from `iteration` on."""

    split: str
    dataset: str
    iteration: int
    ok: int
    abstain: int
    error: int
    mean: float | None
    """Over the rows with status ok; None if there are none. The same holds for `low` and `high`."""
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """The scores of one grader in such iterations; completions without a score do not count."""

    split: str
    dataset: str
    grader: str
    iteration: int
    count: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GroupCell:
    """The groups in such iterations: completions of one iteration, slot, attempt and sample, at least two with a
    reward."""

    split: str
    dataset: str
    iteration: int
    groups: int
    zero_variance: int
    """Groups whose rewards are all equal; GRPO learns nothing from them."""


class JournalSummaries:
    """Queries for the dashboard; a cell covers `width` iterations and starts at a multiple of `width`.

    All raise ServerError if the database fails.
    """

    def __init__(self, engine: Engine):
        self._engine = engine

    def runs(self) -> list[RunSummary]:
        """All runs, the one with the newest row first."""
        newest = func.max(grades.c.id)
        query = select(grades.c.run_id, func.count(), func.max(grades.c.iteration), newest)
        return [RunSummary(*row) for row in self._all(query.group_by(grades.c.run_id).order_by(newest.desc()))]

    def rewards(self, run_id: str, since: int, width: int = 1) -> list[RewardCell]:
        """Rewards per split, data set and iteration, sorted in this order."""
        keys = (grades.c.split, grades.c.dataset, _start(width))
        counts = [func.count().filter(grades.c.status == status) for status in ("ok", "abstain", "error")]
        rewards = [function(grades.c.reward).filter(_OK) for function in (func.avg, func.min, func.max)]
        query = select(*keys, *counts, *rewards).where(*_rows_of(run_id, since)).group_by(*keys).order_by(*keys)
        return [RewardCell(*row) for row in self._all(query)]

    def scores(self, run_id: str, since: int, width: int = 1) -> list[ScoreCell]:
        """Scores per split, data set, grader and iteration, sorted in this order."""
        each = func.json_each(grades.c.components).table_valued(column("key"), column("value", JSON))
        score = each.c.value["score"].as_float()
        keys = (grades.c.split, grades.c.dataset, each.c.key, _start(width))
        query = select(*keys, func.count(score), func.avg(score), func.min(score), func.max(score))
        query = query.select_from(grades).join(each, onclause=score.is_not(None)).where(*_rows_of(run_id, since))
        return [ScoreCell(*row) for row in self._all(query.group_by(*keys).order_by(*keys))]

    def groups(self, run_id: str, since: int, width: int = 1) -> list[GroupCell]:
        """Groups per split, data set and iteration, sorted in this order."""
        start = _start(width).label("start")
        names = ("split", "dataset", "iteration", "sample_id", "slot", "attempt")
        group = (start, *(grades.c[name] for name in names))
        equal = (func.min(grades.c.reward) == func.max(grades.c.reward)).label("equal")
        chosen = select(*group, equal).where(_OK, *_rows_of(run_id, since)).group_by(*group)
        each = chosen.having(func.count() > 1).subquery()
        keys = (each.c.split, each.c.dataset, each.c.start)
        query = select(*keys, func.count(), func.count().filter(each.c.equal)).group_by(*keys).order_by(*keys)
        return [GroupCell(*row) for row in self._all(query)]

    def grader_milliseconds(self, run_id: str, rows: int) -> dict[str, list[float]]:
        """How long each grader took for the newest `rows` rows of a run, newest first."""
        query = select(grades.c.components).where(grades.c.run_id == run_id).order_by(grades.c.id.desc()).limit(rows)
        times: dict[str, list[float]] = {}
        for (components,) in self._all(query):
            for name, component in components.items():
                times.setdefault(name, []).append(component["ms"])
        return times

    def _all(self, query: Executable) -> list[Any]:
        with connected(self._engine, "the summary cannot be computed") as connection:
            return list(connection.execute(query))


def _start(width: int) -> ColumnElement[int]:
    return grades.c.iteration // width * width


def _rows_of(run_id: str, since: int) -> tuple[ColumnElement[bool], ...]:
    return grades.c.run_id == run_id, grades.c.iteration >= since
