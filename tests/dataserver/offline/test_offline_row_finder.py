"""A line identifies its row by id, by position or by prompt, never by a guess."""

from pathlib import Path
from typing import Any

import pytest
from offline_cases import load, write_config, write_lines

from posttrain.config.sections.datasets import ColumnsConfig
from posttrain.dataserver.offline.completions import RowFinder
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError
from posttrain.inference.answering.partial import Answer, answer_line
from posttrain.predict.inputs import read_inputs


def found(loaded: Loaded, **line: Any) -> str:
    """The data set and line that a completion identifies."""
    return RowFinder(loaded).find(line).rpartition(":")[0]


def refusal(loaded: Loaded, **line: Any) -> str:
    """Why it identifies no row."""
    with pytest.raises(DataError) as caught:
        RowFinder(loaded).find(line)
    return str(caught.value)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_the_sample_id_of_a_server_names_its_row(loaded: Loaded):
    sample_id = loaded.samples.sample_id("words", 2)
    assert RowFinder(loaded).find({"sample_id": sample_id, "dataset": "sums", "line": 1}) == sample_id


def test_data_set_and_line_name_a_row(loaded: Loaded):
    assert found(loaded, dataset="sums", line=5) == "sums:5"
    assert found(loaded, dataset="words", line="1") == "words:1"


def test_so_does_what_the_row_asks(loaded: Loaded):
    # In the data set's own column and in the usual ones, as text and as messages, with and without an answer.
    answer = {"role": "assistant", "content": "3"}
    for line in (
        {"question": "sums 3?"},
        {"prompt": "sums 3?"},
        {"prompt": [user("sums 3?")]},
        {"messages": [user("sums 3?")]},
        {"messages": [user("sums 3?"), answer]},
        {"prompt": "<rendered>sums 3?</rendered>", "question": "sums 3?"},
    ):
        assert found(loaded, **line) == "sums:3"


def test_the_whole_conversation_counts_and_not_its_last_message(tmp_path: Path):
    turns = [user("Hello"), {"role": "assistant", "content": "Hi"}, user("sums 1?")]
    config = write_config(tmp_path)
    write_lines(tmp_path / "words.jsonl", [{"messages": turns, "answer": "x"}])
    loaded = load(config)
    assert found(loaded, messages=turns) == "words:1"
    assert found(loaded, prompt="sums 1?") == "sums:1"
    assert "no data set has the prompt 'sums 1?'" in refusal(loaded, messages=[user("Hullo"), *turns[1:]])


def only(folder: Path, **section: Any) -> Loaded:
    """A config with only the data set `sums`."""
    dataset = {"path": "sums.jsonl", "columns": {"prompt": "question"}, "graders": {"one": 1}, **section}
    stages = [{"name": "all", "until_step": 1, "mix": {"sums": 1}}]
    return load(write_config(folder, datasets={"sums": dataset}, stages=stages))


def test_a_system_message_does_not_hide_the_row(tmp_path: Path):
    loaded = only(tmp_path, system="Be short.")
    for system in ("Be short.", "Be long."):
        assert found(loaded, messages=[{"role": "system", "content": system}, user("sums 2?")]) == "sums:2"
    assert found(loaded, messages=[user("sums 2?")]) == "sums:2"


def predicted(file: Path, number: int) -> dict[str, Any]:
    """What toolkit-predict writes for a row of a file."""
    columns = ColumnsConfig(prompt="question", completion="answer")
    row = read_inputs([file], columns, "error").rows[number]
    return answer_line(row, 0, Answer("0.5 1", "length", 2))


def test_what_toolkit_predict_writes_names_its_row(tmp_path: Path, loaded: Loaded):
    line = predicted(tmp_path / "sums.jsonl", 3)
    assert (line["reference"], line["line"]) == ("sums-4", 4)
    assert found(loaded, **line) == "sums:4"


def test_so_it_does_where_there_are_tools_reasoning_and_earlier_turns(tmp_path: Path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns = [
        {"role": "system", "content": "Add."},
        user("1 + 1"),
        {"role": "assistant", "content": "", "reasoning_content": "I add.", "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add"},
        {"role": "assistant", "content": "2"},
        user("And 1 more?"),
    ]
    config = write_config(tmp_path)
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    write_lines(tmp_path / "words.jsonl", [{"messages": turns, "tools": tools, "answer": "3"}])
    assert found(load(config), **predicted(tmp_path / "words.jsonl", 0)) == "words:1"


def twice(folder: Path, *answers: str) -> Loaded:
    """A data set whose first rows have the same prompt."""
    write_config(folder)
    rows = [{"question": "same?", "answer": answer} for answer in answers]
    config = write_config(folder)
    write_lines(folder / "sums.jsonl", [*rows, {"question": "other?", "answer": "x"}])
    return load(config)


def test_rows_that_ask_the_same_are_not_chosen_from_by_chance(tmp_path: Path):
    loaded = twice(tmp_path, "a", "b", "a")
    assert refusal(loaded, prompt="same?") == (
        "sums line 1, sums line 2, sums line 3 have the same prompt, 'same?'; name one with dataset and line"
    )
    assert found(loaded, prompt="same?", dataset="sums", line=2) == "sums:2"


def test_rows_that_are_equal_in_all_they_hold_are_one(tmp_path: Path):
    assert found(twice(tmp_path, *["a"] * 100), prompt="same?") == "sums:1"


def test_the_file_and_line_of_toolkit_predict_tell_them_apart(tmp_path: Path):
    loaded = twice(tmp_path, "a", "b")
    assert [found(loaded, **predicted(tmp_path / "sums.jsonl", number)) for number in (0, 1)] == ["sums:1", "sums:2"]


def test_the_system_message_tells_them_apart(tmp_path: Path):
    rows = [{"question": "same?", "answer": text, "rule": text} for text in ("a", "b")]
    config = write_config(tmp_path)
    write_lines(tmp_path / "sums.jsonl", rows)
    columns = {"prompt": "question", "system": "rule"}
    loaded = load(config, f"datasets.sums.columns={columns}")
    assert found(loaded, messages=[{"role": "system", "content": "b"}, user("same?")]) == "sums:2"
    assert "have the same prompt" in refusal(loaded, messages=[user("same?")])


def test_the_data_set_tells_them_apart(tmp_path: Path):
    config = write_config(tmp_path)
    write_lines(tmp_path / "words.jsonl", [{"question": "sums 1?", "answer": "x"}])
    loaded = load(config)
    assert refusal(loaded, prompt="sums 1?").startswith("sums line 1, words line 1 have the same prompt")
    assert found(loaded, prompt="sums 1?", dataset="words") == "words:1"


def test_a_column_of_the_data_that_is_called_dataset_is_in_nobodys_way(loaded: Loaded):
    for column in ("openai/gsm8k", ["sums"], 7):
        assert found(loaded, question="sums 1?", dataset=column) == "sums:1"


def test_items_that_a_program_makes_are_named_by_number_and_not_searched(tmp_path: Path):
    made = {"type": "reasoning_gym", "task": "leg_counting", "rows": 50, "graders": {"one": 1}}
    stages = [{"name": "all", "until_step": 1, "mix": {"legs": 1}}]
    loaded = load(write_config(tmp_path, datasets={"legs": made}, stages=stages))
    assert found(loaded, dataset="legs", line=49) == "legs:49"
    assert "has no row 50" in refusal(loaded, dataset="legs", line=50)
    assert "name one with its line, counted from 0" in refusal(loaded, dataset="legs", prompt="How many legs?")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"sample_id": "sums:1:00000000"}, "the row of sample 'sums:1:00000000' has changed since it was sampled"),
        ({"sample_id": "sums 1?"}, "unknown sample 'sums 1?'"),
        ({"sample_id": 7}, "sample_id must be text, not '7'"),
        ({"dataset": "sum", "line": 1}, "the config has no data set 'sum'; did you mean 'sums'?"),
        ({"dataset": ["sums"], "line": 1}, "the config has no data set \"['sums']\""),
        ({"dataset": "sums", "line": 6}, "the data set sums has no row 6"),
        ({"dataset": "sums", "line": 0}, "the data set sums has no row 0"),
        ({"prompt": "sums 6?"}, "no data set has the prompt 'sums 6?'"),
        ({"prompt": "x" * 100}, f"no data set has the prompt '{'x' * 80}...'"),
        (
            {"completion": "1", "text": "sums 1?"},
            "it names no row and contains no prompt, only completion, text",
        ),
        ({str(key): 1 for key in range(20)}, "no prompt, only 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 8 more"),
        ({"prompt": 7}, "prompt must be text or a list of messages, not int"),
        ({"messages": [user("sums 1?"), user("\ud800")]}, "messages[1]: content holds a lone surrogate"),
    ],
)
def test_a_line_that_names_no_row_is_told_why(loaded: Loaded, line: dict[str, Any], reason: str):
    assert reason in refusal(loaded, **line)
