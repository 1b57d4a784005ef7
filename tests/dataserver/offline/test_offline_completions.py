"""Completion files: what a line may contain, and how lines that cannot be graded are reported."""

from pathlib import Path
from typing import Any

import pytest
from offline_cases import load, write_lines

from posttrain.dataserver.offline.completions import Completion, CompletionFile
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError

ROW = {"dataset": "sums", "line": 1}


def read(loaded: Loaded, folder: Path, *lines: dict[str, Any] | str, iteration: int = 0) -> list[Completion]:
    """The completions of a file with these lines."""
    return list(CompletionFile(write_lines(folder / "c.jsonl", lines), loaded, iteration))


def refusal(loaded: Loaded, folder: Path, *lines: dict[str, Any] | str) -> list[str]:
    """The lines of the error for a file with these lines, its path shortened to `c.jsonl`."""
    with pytest.raises(DataError) as caught:
        read(loaded, folder, *lines)
    return str(caught.value).replace(str(folder / "c.jsonl"), "c.jsonl").splitlines()


def test_a_completion_is_text_or_the_last_message(loaded: Loaded, tmp_path: Path):
    answered = [{"role": "user", "content": "sums 2?"}, {"role": "assistant", "content": "0.5 1"}]
    first, second, third, fourth = read(
        loaded,
        tmp_path,
        {**ROW, "completion": ""},
        {"messages": answered},
        {"messages": answered, "completion": "another"},
        {"prompt": answered[:1], "completion": "a third", "messages": None},
    )
    assert [each.text for each in (first, second, third, fourth)] == ["", "0.5 1", "another", "a third"]
    assert [each.sample_id.rpartition(":")[0] for each in (first, second, third, fourth)] == [
        "sums:1",
        "sums:2",
        "sums:2",
        "sums:2",
    ]


def test_a_line_is_told_by_its_place_in_the_file(loaded: Loaded, tmp_path: Path):
    only = read(loaded, tmp_path, "", {**ROW, "completion": "1"})[0]
    assert (only.number, only.place) == (2, f"{tmp_path}/c.jsonl:2")


def test_an_array_of_completions_is_read_too(loaded: Loaded, tmp_path: Path):
    (tmp_path / "c.json").write_text('[\n{"dataset": "sums", "line": 1, "completion": "x"}\n]')
    assert [each.text for each in CompletionFile(tmp_path / "c.json", loaded, 0)] == ["x"]


def test_the_iteration_of_a_line_goes_before_that_of_the_command(loaded: Loaded, tmp_path: Path):
    lines = [
        {**ROW, "completion": "1", **more} for more in ({"iteration": 0}, {"iteration": 12}, {}, {"iteration": None})
    ]
    assert [each.iteration for each in read(loaded, tmp_path, *lines, iteration=5)] == [0, 12, 5, 5]


def test_tokens_go_by_either_name(loaded: Loaded, tmp_path: Path):
    given = ({"tokens": 7}, {"completion_tokens": 0, "tokens": 7}, {"completion_tokens": 9}, {})
    completions = read(loaded, tmp_path, *({**ROW, "completion": "1", **more} for more in given))
    assert [each.completion_tokens for each in completions] == [7, 0, 9, None]


def test_toolkit_predict_tells_by_the_stop_reason_what_was_cut_off(loaded: Loaded, tmp_path: Path):
    given = ({"stop_reason": "length"}, {"stop_reason": "end"}, {"truncated": False, "stop_reason": "length"}, {})
    completions = read(loaded, tmp_path, *({**ROW, "completion": "1", **more} for more in given))
    assert [each.truncated for each in completions] == [True, False, False, None]


# By fault: the line, and the message.
WRONG = {
    "no JSON": ("{broken", "not JSON at column 2: Expecting property name enclosed in double quotes"),
    "no object": ("[1]", "not a JSON object but an array"),
    "no completion": (
        {"prompt": "sums 1?", "response": "1"},
        "there is no completion, and no messages that end with one, only prompt, response",
    ),
    "a list": ({**ROW, "completion": ["1"]}, "completion must be text, not list"),
    "an unanswered question": (
        {"messages": [{"role": "user", "content": "sums 1?"}]},
        "there is no completion, and the messages end with a user message",
    ),
    "reasoning apart": (
        {"messages": [{"role": "user", "content": "sums 1?"}, {"role": "assistant", "content": "1", "reasoning": "?"}]},
        "the answer has reasoning_content besides its content; give everything the model wrote as completion",
    ),
    "half a surrogate pair": (
        '{"dataset": "sums", "line": 1, "completion": "ab\\ud800"}',
        "the completion contains a lone surrogate at character 2",
    ),
    "a negative iteration": (
        {**ROW, "completion": "1", "iteration": -1},
        "iteration must be a non-negative integer, not '-1'",
    ),
    "tokens as text": ({**ROW, "completion": "1", "tokens": "5"}, "tokens must be a non-negative integer, not '5'"),
    "tokens as true": (
        {**ROW, "completion": "1", "completion_tokens": True},
        "completion_tokens must be a non-negative integer, not 'True'",
    ),
    "more tokens than a server takes": (
        {**ROW, "completion": "1", "tokens": 2**40 + 1},
        "tokens must be a non-negative integer, not '1099511627777'",
    ),
    "truncated as text": ({**ROW, "completion": "1", "truncated": "no"}, "truncated must be true or false, not 'no'"),
    "no such row": ({"dataset": "sums", "line": 9, "completion": "1"}, "the data set sums has no row 9"),
}


@pytest.mark.parametrize(("line", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_line_that_cannot_be_graded_is_told_why(
    loaded: Loaded, tmp_path: Path, line: dict[str, Any] | str, message: str
):
    assert refusal(loaded, tmp_path, line)[:2] == [
        "c.jsonl: 1 line cannot be graded, and there are no others:",
        f"  c.jsonl:1: {message}",
    ]


def test_all_wrong_lines_are_told_and_how_to_leave_them_out(loaded: Loaded, tmp_path: Path):
    assert refusal(loaded, tmp_path, {**ROW, "completion": "1"}, "[1]", {"completion": "1"}) == [
        "c.jsonl: 2 lines cannot be graded:",
        "  c.jsonl:2: not a JSON object but an array",
        "  c.jsonl:3: it names no row and contains no prompt, only completion",
        "a line names its row with sample_id, with dataset and line, or with exactly the row's prompt; "
        "on_bad_record: skip leaves such lines out",
    ]


def test_of_very_many_wrong_lines_the_first_are_told(loaded: Loaded, tmp_path: Path):
    message = refusal(loaded, tmp_path, *["[1]"] * 1234)
    assert message[0] == "c.jsonl: 1,234 lines cannot be graded, and there are no others:"
    assert message[-3:-1] == ["  c.jsonl:20: not a JSON object but an array", "  ... and 1,214 more"]


def test_wrong_lines_are_left_out_and_counted_where_the_config_says_so(config: Path, tmp_path: Path):
    loaded = load(config, "on_bad_record=skip")
    path = write_lines(tmp_path / "c.jsonl", ["[1]", {**ROW, "completion": "1"}, "{"])
    completions = CompletionFile(path, loaded, 0)
    for _ in range(2):
        assert [each.number for each in completions] == [2]
        assert completions.fault_count == 2
        assert completions.first_faults[0] == f"{path}:1: not a JSON object but an array"
    assert refusal(loaded, tmp_path, "[1]")[0] == "c.jsonl: 1 line cannot be graded, and there are no others:"


def test_a_file_without_completions_is_refused(loaded: Loaded, tmp_path: Path):
    assert refusal(loaded, tmp_path) == ["c.jsonl contains no completions"]
