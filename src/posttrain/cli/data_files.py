"""toolkit-data dedup, decontaminate and stats: clean and measure files of rows."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.cli import doorway
from posttrain.synthesis.config import By

Input = Annotated[Path, typer.Argument(metavar="INPUT", help="A file of rows to train on.", show_default=False)]
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .jsonl file to write.", show_default=False)]
_SHARE: dict[str, Any] = {"min": 0.01, "max": 1.0}
_COLUMN = "The column of the text; by default the prompt of conversations, prompts or pairs."
Column = Annotated[str | None, typer.Option(metavar="NAME", help=_COLUMN)]
_NEAR = "Also leave out near copies: at least this Jaccard similarity of runs of five words."
_BY = "Compare prompts, or whole rows."
_AGAINST = "A file of held-out rows. Repeatable."
_AGAINST_COLUMN = "The column of their text; by default their prompt."
_NGRAMS = "Runs of how many words are looked for; shorter held-out prompts are found only as copies."
_HELD_OUT_SHARE = "The share of a held-out prompt's runs of words that is too much."
_TOKENIZER = "Count tokens as well: a tokenizer.json file, or the config of a training."
_FILES = "Files of rows to train on."


def dedup(
    input_: Input,
    output: Output,
    near: Annotated[float | None, typer.Option(metavar="SHARE", help=_NEAR, **_SHARE)] = None,
    by: Annotated[By, typer.Option(help=_BY)] = "prompt",
    column: Column = None,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Copy the rows of INPUT that repeat no earlier one; white space and case do not count."""
    from posttrain.synthesis import files

    files.dedup(input_, output, near, by, column, overwrite=overwrite)


def decontaminate(
    input_: Input,
    output: Output,
    against: Annotated[list[Path], typer.Option(metavar="FILE", help=_AGAINST, show_default=False)],
    ngrams: Annotated[int, typer.Option(metavar="N", min=1, help=_NGRAMS)] = 13,
    share: Annotated[float, typer.Option(metavar="SHARE", help=_HELD_OUT_SHARE, **_SHARE)] = 0.5,
    column: Column = None,
    against_column: Annotated[str | None, typer.Option(metavar="NAME", help=_AGAINST_COLUMN)] = None,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Copy the rows of INPUT whose prompts do not have a held-out prompt."""
    from posttrain.synthesis import files
    from posttrain.synthesis.config import DecontaminateConfig

    options = DecontaminateConfig(against=tuple(map(str, against)), column=against_column, ngrams=ngrams, share=share)
    files.decontaminate(input_, output, options, column, overwrite=overwrite)


def stats(
    paths: Annotated[list[Path], typer.Argument(metavar="FILES...", help=_FILES, show_default=False)],
    tokenizer: Annotated[Path | None, typer.Option(metavar="FILE", help=_TOKENIZER)] = None,
    column: Column = None,
) -> None:
    """Count rows, columns, turns, lengths and copies."""
    from posttrain.synthesis.stats import show_stats

    show_stats(paths, tokenizer, column)
