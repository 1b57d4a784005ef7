"""toolkit-data generate: write rows of puzzles."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.cli import doorway

generate = doorway.command_app()
_CLUES = "A .jsonl file with the keys clue, answer and, if it is not at the end of the clue, enumeration: (3,4)."
_AT_LEAST_ONE: dict[str, Any] = {"metavar": "N", "min": 1}
Output = Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .jsonl file to write.", show_default=False)]


@generate.command("rush_hour")
def rush_hour(
    output: Output,
    rows: Annotated[int, typer.Option(help="How many boards.", **_AT_LEAST_ONE)] = 1000,
    min_moves: Annotated[int, typer.Option(help="The least that a board may need.", **_AT_LEAST_ONE)] = 2,
    max_moves: Annotated[int, typer.Option(help="The most that a board may need.", **_AT_LEAST_ONE)] = 12,
    seed: Annotated[int, typer.Option(metavar="N", help="Equal seeds give equal boards.")] = 0,
    overwrite: doorway.Overwrite = False,
    debug: doorway.Debug = False,
) -> None:
    """Write Rush Hour boards of 6 × 6 cells, all different, for the grader rush_hour."""
    with doorway.clear_errors(debug):
        from posttrain.synthesis import rush_hour as puzzle

        puzzle.generate(output, rows, min_moves, max_moves, seed=seed, overwrite=overwrite)


@generate.command()
def crossword(
    clues: Annotated[Path, typer.Argument(metavar="CLUES", help=_CLUES, show_default=False)],
    output: Output,
    overwrite: doorway.Overwrite = False,
    debug: doorway.Debug = False,
) -> None:
    """Write a row for each of your crossword CLUES, for the grader crossword."""
    with doorway.clear_errors(debug):
        from posttrain.synthesis import crossword as puzzle

        puzzle.generate(clues, output, overwrite=overwrite)
