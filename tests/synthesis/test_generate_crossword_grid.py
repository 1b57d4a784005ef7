"""Small crosswords: all words cross, no others stand in the grid, and the answer is what the grader takes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.graders.crossword import Crossword
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError
from posttrain.synthesis.crossword import Clue
from posttrain.synthesis.crossword_grid import Grid, Placed, generate, grids

TEXT = "STONE NOTES TONES ONSET EAST SEAT TEAS EATS NEST TENS SENT NETS RATE TEAR TARE OATS STAR RATS ARTS TSAR"
WORDS = TEXT.split()
CLUES = [Clue(f"Clue of {word.lower()}", word, word, f"({len(word)})") for word in WORDS]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [grid.row() for grid in grids(CLUES, 20, words=5, size=6, seed=1)]


def words_in(grid: list[str]) -> list[str]:
    """Everything of two letters or more that can be read in the rows, and then in the columns."""
    columns = ["".join(column) for column in zip(*grid, strict=True)]
    return [word for line in (*grid, *columns) for word in re.findall("[A-Z]{2,}", line)]


def test_what_stands_in_a_grid_are_its_answers_and_nothing_else(rows: list[dict[str, Any]]):
    for row in rows:
        assert [len(line) for line in row["grid"]] == [6] * 6
        assert sorted(words_in(row["grid"])) == sorted(row["answer"].split(", "))
        assert len(row["answer"].split(", ")) == 5


def test_all_words_hang_together(rows: list[dict[str, Any]]):
    for row in rows:
        left = {(y, x) for y, line in enumerate(row["grid"]) for x, sign in enumerate(line) if sign != "#"}
        reached = [left.pop()]
        for y, x in reached:
            near = left & {(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)}
            left -= near
            reached += near
        assert not left


def test_the_prompt_has_the_clues_in_the_order_of_the_answer_and_no_letter_of_it(rows: list[dict[str, Any]]):
    for row in rows:
        shown, _, clues = row["prompt"].partition("\n\nAcross:\n")
        cells = shown.splitlines()[-6:]
        assert [["#" if sign == "#" else "" for sign in line.split()] for line in cells] == [
            ["#" if sign == "#" else "" for sign in line] for line in row["grid"]
        ]
        asked = re.findall(r"^\d+\. Clue of (\w+) \(\d\)$", clues, re.MULTILINE)
        assert [word.upper() for word in asked] == row["answer"].split(", ")
        numbers = [int(number) for number in re.findall(r"^(\d+)\. ", clues, re.MULTILINE)]
        assert set(numbers) == {int(sign) for line in cells for sign in line.split() if sign.isdecimal()}


def test_the_grader_wants_every_word_in_its_place(rows: list[dict[str, Any]]):
    grader = Crossword.model_validate({"extract": {"after": "Answer:"}})
    for row in rows:
        first, *others = row["answer"].split(", ")
        for words, score in (([first, *others], 1.0), ([*others, first], 0.0), (others, 0.0)):
            item = GradeInput(f"Answer: {', '.join(words)}", None, gold=row["answer"], record=row).split()
            grader.check_row(item)
            assert grader.score(item).value == score


def test_equal_seeds_give_equal_grids_that_all_differ(rows: list[dict[str, Any]]):
    assert [grid.row() for grid in grids(CLUES, 5, words=5, size=6, seed=1)] == rows[:5]
    assert [grid.row() for grid in grids(CLUES, 5, words=5, size=6, seed=2)] != rows[:5]
    assert len({row["prompt"] for row in rows}) == len(rows)


def test_a_word_fits_only_where_it_crosses_others_or_keeps_away_from_them():
    east, tens, oats = (next(clue for clue in CLUES if clue.answer == word) for word in ("EAST", "TENS", "OATS"))
    grid = Grid(5)
    grid.place(Placed(east, 1, 0, is_down=False))
    assert grid.crossings(Placed(tens, 1, 3, is_down=True)) == 1
    assert grid.crossings(Placed(tens, 0, 3, is_down=True)) is None  # its E would be on the T
    assert grid.crossings(Placed(oats, 0, 1, is_down=True)) == 1
    assert grid.crossings(Placed(tens, 2, 0, is_down=False)) is None  # beside it
    assert grid.crossings(Placed(tens, 2, 1, is_down=True)) is None  # it would prolong a column
    assert grid.crossings(Placed(tens, 3, 0, is_down=False)) == 0
    assert grid.crossings(Placed(tens, 3, 2, is_down=False)) is None  # over the edge
    assert grid.crossings(Placed(east, 1, 0, is_down=False)) is None  # it is there already


def test_too_few_clues_are_told_and_nothing_is_written(tmp_path: Path):
    source, output = tmp_path / "clues.jsonl", tmp_path / "grids.jsonl"
    source.write_text("".join(json.dumps({"clue": clue.text, "answer": clue.answer}) + "\n" for clue in CLUES[:2]))
    with pytest.raises(ConfigError, match=r"of 3 words in 6 × 6 cells .* 2 answers of 3 to 6 letters"):
        generate(source, output, 1, words=3, size=6, seed=0, overwrite=False)
    assert not output.exists()
    generate(source, output, 1, words=2, size=6, seed=0, overwrite=False)
    assert len(output.read_text().splitlines()) == 1
