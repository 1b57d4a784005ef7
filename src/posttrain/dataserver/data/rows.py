"""What all data sets of a dataserver are: rows that are found by number and by key."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    index: int
    """Its number among the usable rows, from 0."""
    key: str
    """Its place in the data: the line of a file, the index of a made item."""
    digest: str
    """Hash of its content, 8 hex digits."""
    record: Mapping[str, Any]


class Rows(Protocol):
    """The rows of a data set."""

    digest: str
    """Hash of all rows."""

    faults: list[str]
    """One line `place: reason` for each record that was left out."""

    too_long: int
    """How many rows were left out because of the length of their prompts."""

    def __len__(self) -> int: ...

    def read(self, index: int) -> Row:
        """Row number `index`."""
        ...

    def key(self, index: int) -> str:
        """The key of row number `index`, without reading it."""
        ...

    def find(self, key: str) -> int | None:
        """The number of the row with that key, if there is one."""
        ...

    def place(self, index: int) -> str:
        """Where row `index` stands, as a message names it."""
        ...

    def contents(self) -> npt.NDArray[np.uint64]:
        """One hash per row; rows that ask the same have the same."""
        ...


def row_digest(line: bytes) -> str:
    """8 hex digits that change with the content of a row."""
    return blake2b(line, digest_size=4).hexdigest()


def row_number(key: str) -> int | None:
    """The number that a row's key spells; None where it is no such key."""
    is_number = key.isascii() and key.isdigit() and len(key) <= 18 and key == str(int(key))
    return int(key) if is_number else None


def json_digest(value: Any) -> str:
    """32 hex digits of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()
