"""What a plan is made of, what it says, and how the journal keeps it."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import TypeAdapter, ValidationError

from posttrain.dataserver.data.sampling import Slot
from posttrain.dataserver.journal.plans import Plan, RowStatistics
from posttrain.errors import ServerError

RowKey = tuple[str, str]
"""A data set and the key of a row in it."""

RowPlace = tuple[str, int]
"""A data set and the number of a row in it."""

Statistics = Mapping[RowKey, RowStatistics]
"""What is known of the rows that were graded."""

Reason = Literal["curriculum", "pool", "easy", "replay"]
"""Why a row is asked: the curriculum chose it; it stands for one that the pools kept out; it is easy; it was asked
before."""


class PlannedRow(NamedTuple):
    """What fills a slot: row `number` of a data set."""

    dataset: str
    number: int
    reason: Reason


_ROWS = TypeAdapter(list[PlannedRow])


def as_slots(rows: Sequence[PlannedRow]) -> list[Slot]:
    """The rows with the slots that they fill."""
    return [Slot(slot, row.dataset, row.number) for slot, row in enumerate(rows)]


def to_journal(rows: Sequence[PlannedRow]) -> Plan:
    """The plan as JSON data."""
    return {"rows": [list(row) for row in rows]}


def from_journal(plan: Plan, slots: int) -> list[PlannedRow]:
    """The rows of a plan that the journal kept.

    Raises:
        ServerError: it is no plan for so many slots.
    """
    try:
        rows = _ROWS.validate_python(plan.get("rows"), strict=False)
    except ValidationError:
        rows = []
    if len(rows) != slots:
        raise ServerError(f"journal: a plan is damaged: it has not the {slots} rows of an iteration")
    return rows
