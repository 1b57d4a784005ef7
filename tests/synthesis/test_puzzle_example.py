"""The rows of examples/puzzles are what its commands give today."""

import json
from pathlib import Path

from posttrain.synthesis.crossword import read_clues
from posttrain.synthesis.rush_hour import puzzles

FOLDER = Path(__file__).parents[2] / "examples" / "puzzles"


def test_the_shipped_rows_are_generated_again():
    shipped = [json.loads(line) for line in (FOLDER / "puzzles.jsonl").read_text().splitlines()]
    boards = [puzzle.row() for puzzle in puzzles(6, 2, 7, seed=0)]
    assert shipped == [*boards, *(clue.row() for clue in read_clues(FOLDER / "clues.jsonl"))]
