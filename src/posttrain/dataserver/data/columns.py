"""Columns of a record by name, also inside an object."""

from collections.abc import Mapping
from typing import Any


def column_value(record: Mapping[str, Any], column: str) -> Any:
    """The column of that name, or else, for `a.b`, key b of the object in column a; None where there is none."""
    if column in record:
        return record[column]
    head, _, rest = column.partition(".")
    inner = record.get(head)
    return column_value(inner, rest) if rest and isinstance(inner, Mapping) else None
