"""Progress lines without a terminal, and table columns."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

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


def shown(table, width: int) -> list[str]:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False, markup=False).print(table)
    return text.getvalue().splitlines()


def test_a_table_that_fits_keeps_its_heads_and_names_whole_and_folds_other_text():
    table = new_table("Data", "data set", "read", "dropped", words=("dropped",))
    table.add_row("validation.dataset", "220,388", "1,200 too long, 188 nothing to train")
    lines = [line.rstrip() for line in shown(table, 50)]
    assert lines[2:6] == [
        " data set               read  dropped",
        f" {'─' * 48}",
        " validation.dataset  220,388  1,200 too long, 188",
        "                              nothing to train",
    ]


def test_a_table_that_does_not_fit_shows_a_row_in_lines_and_folds_only_what_is_longer_than_one():
    table = new_table("Files", "file", "rows", "of them bad")
    table.add_row("/data/" + "x" * 40, "1,000", "7")
    table.add_row("b", "2", "")
    assert [line.rstrip() for line in shown(table, 40)] == [
        "Files",
        "",
        "file         /data/" + "x" * 21,
        "             " + "x" * 19,
        "rows         1,000",
        "of them bad  7",
        "",
        "file         b",
        "rows         2",
        "",
    ]


words = st.text("abcdefghij", min_size=1, max_size=20)


@given(st.lists(words, min_size=1, max_size=10, unique=True), st.data(), st.integers(50, 120))
def test_no_table_cuts_a_head_or_a_name(heads: list[str], data: st.DataObject, width: int):
    table = new_table("", *heads, words=heads[1::2])
    rows = data.draw(st.lists(st.lists(words, min_size=len(heads), max_size=len(heads)), min_size=1, max_size=3))
    for row in rows:
        table.add_row(*row)
    lines = shown(table, width)
    assert all(len(line) <= width for line in lines)
    found = " ".join(lines).split()
    assert {*heads, *(cell for row in rows for cell in row)} <= {*found}
