"""Leave out texts that repeat earlier ones, or that have a held-out text, and say which and where."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.base.text import clipped, counted
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.data.overlap import HeldOut, duplicates
from posttrain.data.readers.open import open_lines
from posttrain.data.row_texts import RowTexts, read_texts
from posttrain.data.sources import values
from posttrain.errors import DataError
from posttrain.synthesis.config import By, DecontaminateConfig


@dataclass(frozen=True)
class PlacedRow:
    """A row of a file, with its place as shown in messages."""

    place: str
    row: Mapping[str, Any]
    texts: RowTexts

    def compared(self, by: By) -> str:
        """The text that is compared."""
        return self.texts.prompt if by == "prompt" else self.texts.whole


@dataclass(frozen=True)
class LeftOut:
    """A text that is left out, and why.

    Attributes:
        place: where it is.
        because_of: where the text is that it repeats or has.
        share: how similar they are (Jaccard), or how much of the held-out text it has, from 0 to 1.
        exact: whether both are equal.
    """

    place: str
    because_of: str
    share: float
    exact: bool

    def __str__(self) -> str:
        return f"{self.place}: {'equals' if self.exact else f'{self.share:.0%} like'} {self.because_of}"


Texts = Sequence[tuple[str, str]]
"""Places and texts."""


def read_rows(path: str | Path, column: str | None = None) -> Iterator[PlacedRow]:
    """The rows of a file.

    Args:
        column: the column of the text to compare; None for rows of conversations, prompts or pairs.

    Raises:
        DataError: the file cannot be read, holds no rows, or (at the end) some of them are unusable.
    """
    source = open_lines(path, None)
    faults, usable = [], 0
    for line in source.lines():
        try:
            row = values(line)
            placed = PlacedRow(source.place(line.number), row, read_texts(row, column))
        except DataError as error:
            faults.append(f"{source.place(line.number)}: {clipped(str(error))}")
        else:
            usable += 1
            yield placed
    if faults:
        more = [f"... and {len(faults) - SHOWN_FAULTS:,} more"] if len(faults) > SHOWN_FAULTS else []
        listed = [f"  {fault}" for fault in [*faults[:SHOWN_FAULTS], *more]]
        raise DataError("\n".join([f"{source.name} has {counted(len(faults), 'bad record')}:", *listed]))
    if not usable:
        raise DataError(f"{source.name} holds no records")


def repeated(texts: Texts, near: float | None) -> dict[int, LeftOut]:
    """What repeats an earlier text that stays, by its number; see `posttrain.data.overlap.duplicates`."""
    return {
        number: LeftOut(texts[number][0], texts[found.of][0], found.similarity, found.exact)
        for number, found in duplicates((text for _, text in texts), near).items()
    }


def contaminated(texts: Texts, config: DecontaminateConfig) -> dict[int, LeftOut]:
    """What has a held-out text, by its number, with the text that it has most of.

    Raises:
        DataError: a file of held-out rows cannot be read.
    """
    rows = (row for path in config.against for row in read_rows(path, config.column))
    held_out = HeldOut(((row.place, row.texts.prompt) for row in rows), config.ngrams)
    left_out = {}
    for number, (place, text) in enumerate(texts):
        if found := held_out.found_in(text, config.share):
            most = max(found, key=lambda each: (each.share, each.exact))
            left_out[number] = LeftOut(place, most.place, most.share, most.exact)
    return left_out
