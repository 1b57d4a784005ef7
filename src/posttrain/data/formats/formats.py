"""The formats of other tools: find one by name, or the one that the first rows of a data set agree on."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from posttrain.config.sections.datasets import Format
from posttrain.data.formats.alpaca import ALPACA, ALPACA_PROMPT
from posttrain.data.formats.base import RowFormat
from posttrain.data.formats.openai import OPENAI
from posttrain.data.formats.sharegpt import SHAREGPT
from posttrain.data.formats.transcripts import TRANSCRIPTS
from posttrain.data.readers.json_lines import Line
from posttrain.data.readers.open import LineSource
from posttrain.errors import DataError

FORMATS = {each.name: each for each in (SHAREGPT, ALPACA, ALPACA_PROMPT, OPENAI, TRANSCRIPTS)}
"""In the order in which they are tried; of two that recognise the same rows, the first is taken."""

_LOOKED_AT = 100


def format_of(source: LineSource, name: Format) -> RowFormat | None:
    """The format that rows are converted from; None if they have the toolkit's own columns.

    With `auto` it is the one that all of the first 100 rows have, if there is one.
    """
    if name != "auto":
        return FORMATS.get(name)
    try:
        rows = list(islice(source.head(), _LOOKED_AT))
    except DataError:
        return None  # whoever reads all rows says what is wrong
    return _agreed(rows) if rows else None


def converted(source: LineSource, found: RowFormat, name: Format) -> LineSource:
    """The source with its rows converted from a format."""

    def lines() -> Iterator[Line]:
        return (_converted(line, found) for line in source.lines())

    told = [] if source.note is None else [source.note]
    if name == "auto":
        told.append(f"{source.name}: read as {found.shape}, which the first rows are; format: {found.name} says so")
    digest = f"{source.digest}-{found.name}"
    return replace(source, lines=lines, digest=digest, note="\n".join(told) or None)


def recognised(row: Mapping[str, Any]) -> RowFormat | None:
    """The format that a single row looks like; None if none."""
    return _agreed([row])


def _agreed(rows: Sequence[Mapping[str, Any]]) -> RowFormat | None:
    return next((each for each in FORMATS.values() if all(each.fits(row) for row in rows)), None)


def _converted(line: Line, found: RowFormat) -> Line:
    if line.value is None:
        return line
    try:
        return Line(line.number, found.convert(line.value))
    except DataError as error:
        return Line(line.number, None, str(error))
