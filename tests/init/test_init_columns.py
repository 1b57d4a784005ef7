"""Columns are guessed from their names, and numbers are measured."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from posttrain.errors import DataError
from posttrain.init.columns import Task, guess_columns
from posttrain.init.golds import Gold, judge
from posttrain.init.measure import Measured, suggested_length
from posttrain.init.texts import quoted


def write(folder: Path, *rows: dict, name: str = "data.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "task", "columns"),
    [
        ({"messages": []}, "sft", {"messages": "messages"}),
        ({"question": "q", "answer": "a"}, "sft", {"prompt": "question", "completion": "answer"}),
        ({"instruction": "q", "output": "a", "id": 1}, "sft", {"messages": "messages"}),
        ({"prompt": "q", "completion": "a"}, "sft", {"prompt": "prompt", "completion": "completion"}),
        ({"chosen": [], "rejected": []}, "dpo", {"chosen": "chosen", "rejected": "rejected"}),
        (
            {"question": "q", "chosen": "a", "rejected": "b", "system": "s"},
            "dpo",
            {"prompt": "question", "chosen": "chosen", "rejected": "rejected", "system": "system"},
        ),
    ],
)
def test_the_task_and_the_columns_follow_from_the_names(row: dict, task: Task, columns: dict, tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, row), None)
    assert (guess.task, guess.columns) == (task, columns)


def test_only_columns_with_other_names_are_written(tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, {"prompt": "q", "answer": "a"}), None)
    assert guess.renamed == {"completion": "answer"}


def test_a_column_of_system_messages_is_always_written_because_no_config_reads_one_by_itself(tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, {"prompt": "q", "completion": "a", "system": "s"}), None)
    assert guess.renamed == {"system": "system"}


def test_columns_that_are_not_used_are_told(tmp_path: Path) -> None:
    row = {"instruction": "Add.", "input": "1 and 2", "output": "3", "id": 7, "note": None}
    guess = guess_columns(write(tmp_path, row), None)
    assert guess.columns == {"messages": "messages"}  # as Alpaca rows are read
    assert guess.unused == ["output", "id"]


def test_an_answer_is_the_gold_of_grpo(tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, {"question": "q", "answer": "a"}), "grpo")
    assert guess.columns == {"prompt": "question", "gold": "answer"}
    assert guess.renamed == {"prompt": "question"}


def test_a_column_that_is_null_in_all_rows_is_not_there(tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, {"messages": None, "prompt": "q", "answer": "a"}), None)
    assert guess.columns == {"prompt": "prompt", "completion": "answer"}


def test_columns_are_found_in_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("query,response\na,b\n")
    assert guess_columns(path, None).columns == {"prompt": "query", "completion": "response"}


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'text'"):
        guess_columns(write(tmp_path, {"text": "a"}), None)
    with pytest.raises(DataError, match="chosen and rejected"):
        guess_columns(write(tmp_path, {"prompt": "a", "completion": "b"}), "dpo")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no records"):
        guess_columns(write(tmp_path), None)


def test_percentiles_are_of_the_nearest_rank() -> None:
    measured = Measured(20, (), range(1, 21))
    assert [measured.percentile(percent) for percent in (50, 95, 100)] == [10, 19, 20]


@pytest.mark.parametrize(
    ("lengths", "positions", "limit"),
    [
        ([10] * 10, None, 64),  # the next multiple of 64
        ([10] * 10 + [65], None, 128),
        ([100] * 99 + [5000], None, 128),  # one very long row does not set the limit
        ([3000] * 10, None, 2048),
        ([3000] * 10, 512, 512),  # as far as the model can read
    ],
)
def test_the_limit_has_room_for_nearly_all_rows(lengths: list[int], positions: int | None, limit: int) -> None:
    assert suggested_length(Measured(len(lengths), (), lengths), positions) == limit


def test_room_for_completions_is_left_in_the_context() -> None:
    measured = Measured(1, (), [3000])
    assert suggested_length(measured, 1024, reserved=256) == 768
    assert suggested_length(measured, 256, reserved=256) == 64  # which the dry run then refuses


@pytest.mark.parametrize(
    ("golds", "after", "is_number"),
    [
        (["72", 5, "1,234", "$5", "-3.5"], None, True),
        (["2 * 3 = 6 #### 6", "#### 7"], "####", True),
        (["Paris", "Rome"], None, False),
        (["Answer: Paris", "So it is\nAnswer: Rome"], "Answer:", False),
        (["#### 6", "7"], None, True),  # the mark is not in all of them
        (["Apollo 11", "5"], None, False),
        (["7 million"], None, False),
        ([True], None, False),
        ([["NYC", "New York"]], None, False),
        ([], None, False),
    ],
)
def test_golds_are_numbers_if_nothing_else_is_there(golds: list, after: str | None, is_number: bool) -> None:
    assert judge("answer", golds) == Gold("answer", after, is_number)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_yaml(text: str) -> None:
    assert yaml.safe_load(f"{{data: {quoted(text)}}}") == {"data": text}
