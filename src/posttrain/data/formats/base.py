"""What a format of other tools is: a name, how to recognise a row, and how to convert it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class RowFormat:
    """A format of rows.

    Attributes:
        name: as `format` in a config names it.
        shape: what its rows look like, for messages.
        fits: whether a row has the shape of this format and not that of the toolkit's own columns.
        convert: gives a row the toolkit's own columns (`messages`; `prompt` with `chosen` and `rejected`; `tools`),
            and leaves the others as they are. Raises DataError if the row is not of this format.
    """

    name: str
    shape: str
    fits: Callable[[Row], bool]
    convert: Callable[[Row], dict[str, Any]]


def with_system(messages: list[Any], system: object) -> list[Any]:
    """The messages, after a system message if there is a text for one."""
    return [{"role": "system", "content": system}, *messages] if system else messages
