"""Progress lines without a terminal, and table columns."""

import pytest

from posttrain.base import console
from posttrain.base.console import Counting, new_table


def test_without_a_terminal_lines_say_how_many_are_done(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0)
    with Counting("grading", "completions", 2_000) as progress:
        progress.advance()
        progress.advance(1_499)
        progress.advance(1_499)
    assert capsys.readouterr().err.splitlines() == [
        "grading: 1 of 2,000 completions",
        "grading: 1,500 of 2,000 completions",
        "grading: 2,000 of 2,000 completions",
    ]


def test_a_total_that_is_not_known_is_left_out_until_it_is(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0)
    with Counting("merging", "tensors") as progress:
        progress.advance()
        progress.reach(2, 7)
    assert capsys.readouterr().err.splitlines() == ["merging: 1 tensors", "merging: 2 of 7 tensors"]


def test_what_is_done_at_once_says_nothing(capsys):
    with Counting("answering", "answers", 3) as progress:
        progress.advance(3)
    assert capsys.readouterr().err == ""


def test_numbers_of_a_table_end_at_the_right():
    table = new_table("Stages", "stage", "steps", "data set", words=("data set",))
    assert [column.justify for column in table.columns] == ["left", "right", "left"]
    assert table.title == "Stages"
    assert new_table("").title is None
