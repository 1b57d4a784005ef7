"""`toolkit-data dedup` and `decontaminate`: copy the rows of a file that stay."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from posttrain.base.console import console
from posttrain.base.outputs import checked_output, output_lines
from posttrain.base.text import counted
from posttrain.data.bad_records import SHOWN_FAULTS
from posttrain.synthesis.cleaning import LeftOut, PlacedRow, contaminated, read_rows, repeated
from posttrain.synthesis.config import By, DecontaminateConfig


def dedup(
    source: Path, output: Path, near: float | None, by: By, column: str | None = None, *, overwrite: bool = False
) -> None:
    """Copy the rows of `source` that repeat no earlier row.

    Args:
        near: leave out rows that are at least this similar, too.
        column: compare the texts in this column.

    Raises:
        ConfigError: the output must not be written.
        DataError: the rows cannot be read.
    """

    def left_out(rows: Sequence[PlacedRow]) -> Mapping[int, LeftOut]:
        return repeated([(row.place, row.compared(by)) for row in rows], near)

    _copy(source, output, [], column, left_out, overwrite=overwrite)


def decontaminate(
    source: Path, output: Path, config: DecontaminateConfig, column: str | None = None, *, overwrite: bool = False
) -> None:
    """Copy the rows of `source` whose prompts have no held-out prompt; arguments and errors as `dedup`."""

    def left_out(rows: Sequence[PlacedRow]) -> Mapping[int, LeftOut]:
        return contaminated([(row.place, row.texts.prompt) for row in rows], config)

    _copy(source, output, [Path(each) for each in config.against], column, left_out, overwrite=overwrite)


def _copy(
    source: Path,
    output: Path,
    others: Sequence[Path],
    column: str | None,
    left_out_of: Callable[[Sequence[PlacedRow]], Mapping[int, LeftOut]],
    *,
    overwrite: bool,
) -> None:
    with checked_output(output, [source, *others], overwrite=overwrite):
        rows = list(read_rows(source, column))
        left_out = left_out_of(rows)
        with output_lines(output) as write:
            for number, row in enumerate(rows):
                if number not in left_out:
                    write(dict(row.row))
    show_left_out(list(left_out.values()))
    exact = sum(each.exact for each in left_out.values())
    console.print(
        f"wrote {len(rows) - len(left_out):,} of {counted(len(rows), 'row')} to {output}; left out "
        f"{exact:,} equal to another and {len(left_out) - exact:,} like one"
    )


def show_left_out(left_out: Sequence[LeftOut]) -> None:
    """Print the first of what is left out, each with both places."""
    for each in left_out[:SHOWN_FAULTS]:
        console.print(f"left out {each}")
    if len(left_out) > SHOWN_FAULTS:
        console.print(f"... and {len(left_out) - SHOWN_FAULTS:,} more")
