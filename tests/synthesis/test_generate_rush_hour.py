"""Generated boards: solvable as said, all different, a function of the seed, and rows that the grader takes."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from posttrain.dataserver.graders.puzzles.sliding_blocks import fewest_moves, parse_board, parse_moves
from posttrain.dataserver.graders.rush_hour import RushHour
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import ConfigError
from posttrain.synthesis.rush_hour import generate, puzzles


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [puzzle.row() for puzzle in puzzles(40, 2, 6, seed=3)]


def test_every_board_needs_as_many_moves_as_its_row_says(rows: list[dict[str, Any]]):
    for row in rows:
        assert fewest_moves(parse_board(row["board"]), 10_000) == row["moves"]
        assert len(parse_moves(row["answer"]) or []) == row["moves"]


def test_boards_differ_by_more_than_the_names_of_their_pieces(rows: list[dict[str, Any]]):
    def shape(board: str) -> tuple[int, ...]:
        return tuple(board.index(sign) if sign not in "oA" else -ord(sign) for sign in board)

    assert len({shape(row["board"]) for row in rows}) == len(rows)


def test_pieces_are_named_as_they_are_read(rows: list[dict[str, Any]]):
    for row in rows:
        names = "".join(dict.fromkeys(row["board"])).replace("o", "").replace("A", "")
        assert names == "BCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(names)]


def test_all_numbers_of_moves_are_about_as_frequent(rows: list[dict[str, Any]]):
    frequency = Counter(row["moves"] for row in rows)
    assert set(frequency) == {2, 3, 4, 5, 6}
    assert min(frequency.values()) >= 40 // 5 / 2


def test_the_grader_gives_the_answer_of_a_row_everything(rows: list[dict[str, Any]]):
    grader = RushHour.model_validate({"extract": {"after": "Answer:"}})
    for row in rows:
        text = f"Let me see.\nAnswer: {row['answer']}"
        item = GradeInput(text, None, gold=row["answer"], record=row).split()
        grader.check_row(item)
        assert grader.score(item).value == 1.0


def test_the_prompt_shows_the_board_and_not_its_answer(rows: list[dict[str, Any]]):
    for row in rows:
        assert row["board"] in row["prompt"].replace(" ", "").replace("\n", "")
        assert row["answer"] not in row["prompt"]


def test_equal_seeds_give_equal_boards_and_more_of_them_begin_alike(rows: list[dict[str, Any]]):
    assert [puzzle.row() for puzzle in puzzles(15, 2, 6, seed=3)] == rows[:15]
    assert [puzzle.row() for puzzle in puzzles(15, 2, 6, seed=4)] != rows[:15]


def test_the_file_has_a_row_per_line_and_is_not_replaced_unless_told_so(tmp_path: Path):
    output = tmp_path / "new" / "boards.jsonl"
    generate(output, 3, 1, 2, seed=0, overwrite=False)
    first = output.read_bytes()
    lines = [json.loads(line) for line in first.splitlines()]
    assert [set(line) for line in lines] == [{"task", "prompt", "answer", "board", "moves"}] * 3
    with pytest.raises(ConfigError, match="already exists"):
        generate(output, 3, 1, 2, seed=1, overwrite=False)
    assert output.read_bytes() == first
    generate(output, 3, 1, 2, seed=1, overwrite=True)
    assert output.read_bytes() != first


def test_boards_that_do_not_exist_are_told_and_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("posttrain.synthesis.rush_hour._FRUITLESS", 20)
    with pytest.raises(ConfigError, match="only 0 boards of 90 to 99 moves"):
        generate(tmp_path / "boards.jsonl", 3, 90, 99, seed=0, overwrite=False)
    with pytest.raises(ConfigError, match="--min-moves 5 is more than --max-moves 4"):
        generate(tmp_path / "boards.jsonl", 3, 5, 4, seed=0, overwrite=False)
    assert list(tmp_path.iterdir()) == []
