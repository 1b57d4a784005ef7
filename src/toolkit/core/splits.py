"""Rows held out for validation, chosen by what they say.

Which side a row is on depends on the seed and on the contents of the data set, not on the order of its lines,
and rows that say the same are always on the same side: a model is never tested on what it was trained on.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from toolkit.core.messages import Conversation
from toolkit.core.records import Record
from toolkit.errors import ConfigError, DataError

Rows = npt.NDArray[np.int64]


def content_hash(conversation: Conversation) -> int:
    """64-bit hash of what is said, by whom, with which tools; not of which turns may be trained."""
    turns = [
        [turn.role, turn.content, turn.reasoning, [[c.name, c.arguments] for c in turn.tool_calls], turn.name]
        for turn in conversation.messages
    ]
    described = json.dumps([turns, conversation.tools], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(described.encode(), digest_size=8).digest(), "big")


class Splittable(Protocol):
    """A data set whose rows can be divided."""

    @property
    def contents(self) -> npt.NDArray[np.uint64]:
        """One content hash per row, shape [rows]."""
        ...

    def subset(self, rows: Rows, name: str) -> Self:
        """The given rows as a data set of their own."""
        ...


D = TypeVar("D", bound=Splittable)


def split_each(whole: Mapping[str, D], fraction: float, seed: int) -> tuple[dict[str, D], list[D]]:
    """What is left of each data set to train on, by name, and what is held out of each."""
    training: dict[str, D] = {}
    held_out: list[D] = []
    for name, dataset in whole.items():
        train_rows, validation_rows = held_out_rows(dataset.contents.tolist(), fraction, seed, name)
        training[name] = dataset.subset(train_rows, name)
        held_out.append(dataset.subset(validation_rows, name))
    return training, held_out


def held_out(records: Sequence[Record], fraction: float, seed: int, name: str) -> tuple[list[Record], list[Record]]:
    """`held_out_rows` of records: those to train on, and those to validate with, in their order."""
    contents = [content_hash(record.conversation) for record in records]
    train, validation = held_out_rows(contents, fraction, seed, name)
    return [records[row] for row in train], [records[row] for row in validation]


def held_out_rows(contents: Iterable[int], fraction: float, seed: int, name: str) -> tuple[Rows, Rows]:
    """Row numbers to train on and row numbers held out, each rising, from one content hash per row.

    Contents are taken in the order of a hash of (seed, content) for as long as their rows fit into
    `fraction` of all rows, rounded and at least one. A content with more rows than are left is passed over;
    if all have too many, the one with the fewest is taken.

    Raises:
        DataError: there are not two different contents to put on two sides.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"the validation fraction must lie between 0 and 1, not {fraction}")
    each = [int(content) for content in contents]
    rows_of = Counter(each)
    if len(rows_of) < 2:
        raise DataError(
            f"{name}: nothing can be held out of {len(each)} rows that all say the same; "
            "give validation a data set of its own"
        )
    order = sorted(rows_of, key=lambda content: _rank(seed, content))
    target = max(1, round(fraction * len(each)))
    chosen, count = set[int](), 0
    for content in order:
        if count + rows_of[content] <= target and len(chosen) < len(order) - 1:
            chosen.add(content)
            count += rows_of[content]
    chosen = chosen or {min(order, key=lambda content: rows_of[content])}
    is_held_out = np.array([content in chosen for content in each])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def _rank(seed: int, content: int) -> bytes:
    return hashlib.blake2b(content.to_bytes(8, "big"), key=str(seed).encode(), digest_size=16).digest()
