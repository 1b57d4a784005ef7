"""The rows of one data set as a preview needs them, whatever the recipe."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from posttrain.base.text import counted
from posttrain.data.sources import Attempt
from posttrain.errors import DataError
from posttrain.preview.tokens import Side

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shown:
    """A row to show.

    Attributes:
        place: data set, file and line.
        why: why this row is shown.
        facts: counts and remarks, in words.
        prompt: tokens that all sides share; None if each side is a whole row.
        texts: longer remarks by their titles, such as the gold answer.
    """

    place: str
    why: str
    sides: Sequence[Side]
    facts: Sequence[str] = ()
    prompt: Side | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


class PreparedRows(Protocol):
    """The rows of one data set as they are trained."""

    name: str
    path: str
    lengths: Numbers
    """Tokens of each row, shape [rows]; of both sides for pairs."""
    trained: Numbers
    """Trained tokens of each row, shape [rows]."""
    lines: Numbers
    """The line of each row, shape [rows]."""

    def place(self, line: int) -> str:
        """The place of a line, for people."""
        ...

    def lost(self) -> Mapping[int, int]:
        """How many tokens truncation took from each row that it cut, by row; reads the data again if it cut any."""
        ...

    def show(self, row: int, why: str) -> Shown:
        """A row, with the tokens that were cut off."""
        ...

    def show_left_out(self, line: int, why: str) -> Shown:
        """A record that is not trained, with the reason.

        Raises:
            DataError: there is no such record, or it cannot be used.
        """
        ...


def wanted(attempts: Iterable[Attempt[T]], lines: Collection[int]) -> Iterator[tuple[int, T]]:
    """The records on some lines, parsed; the others are only passed. DataError if one of them cannot be used."""
    left = set(lines)
    for attempt in attempts:
        if not left:
            return
        if attempt.line in left:
            left.remove(attempt.line)
            try:
                yield attempt.line, attempt.parse()
            except DataError as error:
                raise DataError(f"{attempt.place}: {error}") from None


def in_batches(records: Iterator[T], size: int = 256) -> Iterator[list[T]]:
    """The records, some at a time, as the tokenizer likes to have them."""
    while batch := list(islice(records, size)):
        yield batch


def require_unchanged(whole: Sequence[int], kept: npt.NDArray[np.int32], place: str, *, cut_left: bool) -> None:
    """Raise DataError unless the tokens kept are the start of the row, or its end if truncation cuts on the left."""
    start = len(whole) - len(kept) if cut_left else 0
    if start < 0 or list(whole[start : start + len(kept)]) != kept.tolist():
        raise DataError(f"{place}: the data have changed since they were tokenised; start again")


def counts(kept: int, trained: int, whole: int) -> list[str]:
    """The tokens of a row in words."""
    cut = [f"{whole - kept:,} cut off"] if whole > kept else []
    return [counted(kept, "token"), f"{trained:,} trained", *cut]
