"""toolkit-data generate: write rows of puzzles."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.cli import doorway

generate = doorway.command_app()
_CLUES = "A .jsonl file with the keys clue, answer and, if it is not at the end of the clue, enumeration: (3,4)."
_AT_LEAST_ONE: dict[str, Any] = {"metavar": "N", "min": 1}
Clues = Annotated[Path, typer.Argument(metavar="CLUES", help=_CLUES, show_default=False)]
Seed = Annotated[int, typer.Option(metavar="N", help="Equal seeds give equal rows.")]
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .jsonl file to write.", show_default=False)]


@generate.command("rush_hour")
def rush_hour(
    output: Output,
    rows: Annotated[int, typer.Option(help="How many boards.", **_AT_LEAST_ONE)] = 1000,
    min_moves: Annotated[int, typer.Option(help="The least that a board may need.", **_AT_LEAST_ONE)] = 2,
    max_moves: Annotated[int, typer.Option(help="The most that a board may need.", **_AT_LEAST_ONE)] = 12,
    seed: Seed = 0,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Write Rush Hour boards of 6 × 6 cells, all different, for the grader rush_hour."""
    from posttrain.synthesis import rush_hour as puzzle

    puzzle.generate(output, rows, min_moves, max_moves, seed=seed, overwrite=overwrite)


@generate.command()
def crossword(
    clues: Clues,
    output: Output,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Write a row for each of your crossword CLUES, for the grader crossword."""
    from posttrain.synthesis import crossword as puzzle

    puzzle.generate(clues, output, overwrite=overwrite)


@generate.command("crossword_grid")
def crossword_grid(
    clues: Clues,
    output: Output,
    rows: Annotated[int, typer.Option(help="How many grids.", **_AT_LEAST_ONE)] = 100,
    words: Annotated[int, typer.Option(metavar="N", min=2, help="How many words in each.")] = 5,
    size: Annotated[int, typer.Option(metavar="N", min=3, max=20, help="Cells along a side.")] = 7,
    seed: Seed = 0,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Write small crosswords, of the answers in CLUES that cross each other, for the grader crossword."""
    from posttrain.synthesis import crossword_grid as puzzle

    puzzle.generate(clues, output, rows, words=words, size=size, seed=seed, overwrite=overwrite)
