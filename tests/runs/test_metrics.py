"""metrics.jsonl: appending, reading after a kill, and dropping later steps for a resume."""

import math

import pytest

from posttrain.runs.metrics import append_metrics, keep_until, read_metrics

ROWS = [
    {"step": 0, "eval_loss": 2.5},
    {"step": 1, "stage": "one", "loss": 2.0},
    {"step": 2, "stage": "one", "loss": 1.5},
    {"step": 2, "eval_loss": 1.75},
    {"step": 3, "stage": "two", "loss": 1.0},
]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "metrics.jsonl"
    for row in ROWS:
        append_metrics(file, row)
    return file


def test_lines_come_back_in_the_order_in_which_they_were_written(path):
    assert read_metrics(path) == ROWS
    assert path.read_text().count("\n") == len(ROWS)


def test_a_run_without_a_line_has_none(tmp_path):
    assert read_metrics(tmp_path / "metrics.jsonl") == []


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_a_last_line_that_a_kill_cut_short_is_left_out(path, cut):
    # A cut of one byte removes only the last line's newline.
    path.write_bytes(path.read_bytes()[:-cut])
    assert read_metrics(path) == (ROWS if cut == 1 else ROWS[:-1])


def test_a_kill_may_cut_a_letter_in_two(path):
    append_metrics(path, {"step": 4, "stage": "Übung"})
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index("Ü".encode()) + 1])
    assert read_metrics(path) == ROWS


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85", "\x0c", "\x1c", "\r", "\n"])
def test_a_stage_name_with_a_line_separator_of_unicode_stays_on_its_line(path, letter):
    row = {"step": 4, "stage": f"a{letter}b"}
    append_metrics(path, row)
    append_metrics(path, {"step": 5})
    assert read_metrics(path) == [*ROWS, row, {"step": 5}]


def test_a_loss_that_is_no_number_is_kept_as_such(path):
    append_metrics(path, {"step": 4, "loss": math.nan})
    assert math.isnan(read_metrics(path)[-1]["loss"])


def test_lines_of_later_steps_are_dropped_for_a_resume(path):
    keep_until(path, 2)
    assert read_metrics(path) == ROWS[:4]
    append_metrics(path, ROWS[4])
    assert read_metrics(path) == ROWS


def test_a_resume_from_the_beginning_keeps_only_what_was_measured_before_it(path):
    keep_until(path, 0)
    assert read_metrics(path) == ROWS[:1]


def test_a_torn_line_is_gone_after_a_resume_and_the_next_one_stands_alone(path):
    path.write_bytes(path.read_bytes()[:-3])
    keep_until(path, 9)
    append_metrics(path, ROWS[4])
    assert read_metrics(path) == ROWS


def test_a_run_that_was_killed_before_its_first_line_can_be_resumed(tmp_path):
    keep_until(tmp_path / "metrics.jsonl", 3)
    assert read_metrics(tmp_path / "metrics.jsonl") == []
