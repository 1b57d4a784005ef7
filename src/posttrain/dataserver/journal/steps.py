"""Store the optimizer steps that trainers report, and summarise them for the page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Executable, Table, and_, delete, func, insert, or_, select

from posttrain.dataserver.journal.database import connected, insert_into, step_groups, step_numbers, steps
from posttrain.dataserver.journal.records import StoredRow, storable, utc
from posttrain.dataserver.step_reports import StepReport

_TABLES = (steps, step_numbers, step_groups)


class StepStore:
    """Reported steps in a journal's database, one report for each run and step."""

    def __init__(self, engine: Engine, most_rows: int | None = None) -> None:
        """`most_rows`: how many numbers and groups are kept, of the newest reports; None keeps all."""
        self.engine = engine
        self._most_rows = most_rows

    def put(self, report: StepReport) -> None:
        """Store a report in place of an earlier one of the same run and step.

        Raises:
            ServerError: the database does not answer.
        """
        run_id = storable(report.run_id)
        key = {"run_id": run_id, "step": report.step}
        about = {"config_id": storable(report.config_id or ""), "created_at": datetime.now(UTC)}
        with connected(self.engine, f"step {report.step} cannot be stored") as connection, connection.begin():
            # First, since it locks the row: the same report may come to two servers at once.
            ours = insert_into(connection, steps).values(**key, **about)
            connection.execute(ours.on_conflict_do_update(index_elements=[steps.c.run_id, steps.c.step], set_=about))
            if report.first:
                for table in _TABLES:
                    connection.execute(delete(table).where(table.c.run_id == run_id, table.c.step > report.step))
            for table, rows in ((step_numbers, _numbers(report)), (step_groups, _groups(report))):
                connection.execute(delete(table).where(*_same(table, key)))
                if rows:
                    connection.execute(insert(table), [{**key, **row} for row in rows])
            if self._most_rows is not None:
                _forget_oldest(connection, self._most_rows)


def _numbers(report: StepReport) -> list[dict[str, Any]]:
    # Names that differ only in what no database can store are the same.
    values = {storable(name): value for name, value in report.numbers.items()}
    return [{"name": name, "value": value} for name, value in values.items()]


def _groups(report: StepReport) -> list[dict[str, Any]]:
    texts = ("sample_id", "dataset", "verdict")
    return [
        {**group.model_dump(), "place": place, **{name: storable(getattr(group, name)) for name in texts}}
        for place, group in enumerate(report.groups)
    ]


def _same(table: Table, key: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    return [table.c[name] == value for name, value in key.items()]


def _forget_oldest(connection: Connection, most_rows: int) -> None:
    """Delete whole reports, the oldest first, until few enough rows are left or only one report is."""
    oldest = select(steps.c.run_id, steps.c.step).order_by(steps.c.created_at)
    for key in [row._asdict() for row in connection.execute(oldest)][:-1]:
        counts = (connection.scalar(select(func.count()).select_from(table)) for table in (step_numbers, step_groups))
        if sum(count or 0 for count in counts) <= most_rows:
            return
        for table in _TABLES:
            connection.execute(delete(table).where(*_same(table, key)))


@dataclass(frozen=True, slots=True)
class StepRun:
    """A run that reported steps."""

    run_id: str
    last_step: int
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class GroupRewardCell:
    """The rewards of one data set's groups in the `width` steps from `iteration` on."""

    dataset: str
    iteration: int
    asked: int
    """Groups with a reward that the curriculum asked for these steps, whatever became of them: no replayed ones, no
    substitutes and no spares."""
    asked_reward: float | None
    """Mean of their mean rewards."""
    trained: int
    """Groups with a reward that were trained, replayed ones included."""
    trained_reward: float | None


@dataclass(frozen=True, slots=True)
class VerdictCell:
    """The groups of one data set with the same verdict in such steps; an empty verdict is that of accepted groups."""

    dataset: str
    verdict: str
    iteration: int
    groups: int


@dataclass(frozen=True, slots=True)
class NumberCell:
    """One of the trainer's numbers in such steps; steps without a value do not count."""

    name: str
    iteration: int
    count: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What an optimizer step did with a group."""

    step: int
    trained: bool
    verdict: str
    origin: str


class StepSummaries:
    """Queries for the dashboard, in cells as those of `JournalSummaries`. All raise ServerError if the database
    fails."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def runs(self) -> list[StepRun]:
        """All runs that reported a step, the one with the newest report first."""
        newest = func.max(steps.c.created_at)
        query = select(steps.c.run_id, func.max(steps.c.step), newest).group_by(steps.c.run_id).order_by(newest.desc())
        return [StepRun(run_id, last, utc(at)) for run_id, last, at in self._all(query)]

    def rewards(self, run_id: str, since: int, width: int = 1) -> list[GroupRewardCell]:
        """Asked and trained rewards per data set and step, sorted in this order."""
        reward = step_groups.c.mean_reward
        keys = (step_groups.c.dataset, _start(step_groups, width))
        asked = and_(step_groups.c.origin != "replayed", step_groups.c.attempt == 0)
        chosen = (asked, step_groups.c.trained)
        means = [
            each for where in chosen for each in (func.count(reward).filter(where), func.avg(reward).filter(where))
        ]
        return [GroupRewardCell(*row) for row in self._cells(step_groups, keys, means, run_id, since)]

    def verdicts(self, run_id: str, since: int, width: int = 1) -> list[VerdictCell]:
        """Groups per data set, verdict and step, sorted in this order."""
        keys = (step_groups.c.dataset, step_groups.c.verdict, _start(step_groups, width))
        return [VerdictCell(*row) for row in self._cells(step_groups, keys, [func.count()], run_id, since)]

    def numbers(self, run_id: str, names: Sequence[str], prefix: str, since: int, width: int = 1) -> list[NumberCell]:
        """The numbers with these names, or with names that begin with `prefix`, per name and step, in this order."""
        value = step_numbers.c.value
        keys = (step_numbers.c.name, _start(step_numbers, width))
        means = [func.count(value), func.avg(value), func.min(value), func.max(value)]
        named = or_(step_numbers.c.name.in_(names), step_numbers.c.name.startswith(prefix, autoescape=True))
        cells = self._cells(step_numbers, keys, means, run_id, since, named, value.is_not(None))
        return [NumberCell(*row) for row in cells]

    def uses_of(self, row: StoredRow) -> list[GroupUse]:
        """What became of the group of a graded completion, step by step."""
        of_group = step_groups.c
        # No step trains what a later iteration asks, so that this reads only some of the run's steps.
        same = [of_group.run_id == storable(row.run_id), of_group.step >= row.iteration]
        same += [of_group[name] == getattr(row, name) for name in ("iteration", "slot", "attempt", "sample_id")]
        query = select(of_group.step, of_group.trained, of_group.verdict, of_group.origin).where(*same)
        is_told = row.split == "train" and row.slot is not None
        return [GroupUse(*use) for use in self._all(query.order_by(of_group.step))] if is_told else []

    def _cells(
        self,
        table: Table,
        keys: Sequence[ColumnElement[Any]],
        values: Sequence[ColumnElement[Any]],
        run_id: str,
        since: int,
        *conditions: ColumnElement[bool],
    ) -> list[Any]:
        rows = (table.c.run_id == run_id, table.c.step >= since, *conditions)
        return self._all(select(*keys, *values).where(*rows).group_by(*keys).order_by(*keys))

    def _all(self, query: Executable) -> list[Any]:
        with connected(self._engine, "the steps cannot be summarised") as connection:
            return list(connection.execute(query))


def _start(table: Table, width: int) -> ColumnElement[int]:
    return table.c.step // width * width
