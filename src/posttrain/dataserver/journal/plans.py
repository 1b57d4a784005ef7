"""Read and store what adaptive sampling needs: reward statistics per row, and plans."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Engine, func, select

from posttrain.dataserver.journal.database import connected, grades, insert_into, plans
from posttrain.dataserver.journal.records import storable

Plan = dict[str, object]


@dataclass(frozen=True, slots=True)
class RowStatistics:
    """The rewards of one row's completions."""

    count: int
    mean: float
    """Its last bits depend on the order of summation: store what is derived from it instead of deriving it again."""


RowKey = tuple[str, str]
"""A data set and the key of a row in it."""

Statistics = Mapping[RowKey, RowStatistics]
"""The statistics of the rows graded so far."""


class PlanStore:
    """Statistics of graded rows, and one plan per iteration. Rows must have been written by `add_durable`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def statistics_until(self, run_id: str, config_id: str, iteration: int) -> Statistics:
        """Statistics per data set and row key, over training completions with a reward up to and including `iteration`.

        Raises:
            ServerError: the database does not answer.
        """
        reward = grades.c.reward
        keys = (grades.c.dataset, grades.c.row_key)
        query = select(*keys, func.count(), func.avg(reward)).where(
            grades.c.run_id == storable(run_id),
            grades.c.config_id == config_id,
            grades.c.split == "train",
            grades.c.status == "ok",
            grades.c.iteration <= iteration,
        )
        with connected(self._engine, "the statistics of rows cannot be read") as connection:
            rows = list(connection.execute(query.group_by(*keys).order_by(*keys)))
        return {(dataset, row_key): RowStatistics(*numbers) for dataset, row_key, *numbers in rows}

    def store_plan(self, run_id: str, config_id: str, iteration: int, plan: Plan) -> Plan:
        """Store the plan of an iteration unless it has one, and return the stored one, which is then on disk.

        Raises:
            ServerError: the database does not answer.
        """
        key = {"config_id": config_id, "run_id": storable(run_id), "iteration": iteration}
        purpose = f"the plan of iteration {iteration} cannot be stored"
        with connected(self._engine, purpose, survives_power_cuts=True) as connection, connection.begin():
            ours = insert_into(connection, plans).values(**key, plan=plan)
            connection.execute(ours.on_conflict_do_nothing())
            return connection.scalars(select(plans.c.plan).filter_by(**key)).one()

    def plan(self, run_id: str, config_id: str, iteration: int) -> Plan | None:
        """The stored plan of an iteration, or None; ServerError as above."""
        query = select(plans.c.plan).filter_by(run_id=storable(run_id), config_id=config_id, iteration=iteration)
        with connected(self._engine, f"the plan of iteration {iteration} cannot be read") as connection:
            return connection.scalars(query).first()
