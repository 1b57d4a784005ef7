"""`toolkit-data generate`: a file, a short report, and a message in place of a traceback."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from posttrain.cli.data import main


def data(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), prog_name="toolkit-data")


def test_boards_are_written(tmp_path: Path):
    output = tmp_path / "boards.jsonl"
    finished = data("generate", "rush_hour", output, "--rows", "4", "--min-moves", "2", "--max-moves", "3")
    assert finished.exit_code == 0, finished.output
    assert sorted(json.loads(line)["moves"] for line in output.read_text().splitlines()) == [2, 2, 3, 3]
    finished = data("generate", "rush_hour", output)
    assert finished.exit_code == 2
    assert "already exists" in finished.output and "Traceback" not in finished.output


def test_clues_are_written(tmp_path: Path):
    (tmp_path / "clues.jsonl").write_text('{"clue": "Poem", "answer": "if"}\n')
    assert data("generate", "crossword", tmp_path / "clues.jsonl", tmp_path / "rows.jsonl").exit_code == 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 1
    finished = data("generate", "crossword", tmp_path / "none.jsonl", tmp_path / "more.jsonl")
    assert finished.exit_code == 2
    assert "no such file" in finished.output


def test_grids_are_written(tmp_path: Path):
    clues = [{"clue": word, "answer": word} for word in ("east", "seat", "teas")]
    (tmp_path / "clues.jsonl").write_text("".join(json.dumps(clue) + "\n" for clue in clues))
    options = ("--rows", "2", "--words", "2", "--size", "5")
    finished = data("generate", "crossword_grid", tmp_path / "clues.jsonl", tmp_path / "grids.jsonl", *options)
    assert finished.exit_code == 0, finished.output
    assert len((tmp_path / "grids.jsonl").read_text().splitlines()) == 2


def test_a_range_without_numbers_is_refused(tmp_path: Path):
    finished = data("generate", "rush_hour", tmp_path / "a.jsonl", "--min-moves", "5", "--max-moves", "4")
    assert (finished.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert data("generate", "rush_hour", tmp_path / "a.jsonl", "--rows", "0").exit_code == 2
