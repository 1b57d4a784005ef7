"""A line names the row that it answers by id, by place or by what the row asks; never by guessing."""

from pathlib import Path
from typing import Any

import pytest
from offline_cases import load, write_config, write_lines

from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.offline.rows import RowFinder
from toolkit.errors import DataError
from toolkit.inference.engine import Completion as Generated
from toolkit.inference.engine import StopReason
from toolkit.predict.answers import answer_line
from toolkit.predict.inputs import read_inputs
from toolkit.core.config.data import ColumnsConfig


def found(loaded: Loaded, **line: Any) -> str:
    """The data set and line that a line of completions names."""
    return RowFinder(loaded).find(line).rpartition(":")[0]


def refusal(loaded: Loaded, **line: Any) -> str:
    """Why it names none."""
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
    # In the data set's own column, in the usual ones, as text and as messages, with and without an answer.
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


def test_the_conversation_counts_and_not_its_last_message(tmp_path: Path):
    turns = [user("Hello"), {"role": "assistant", "content": "Hi"}, user("sums 1?")]
    config = write_config(tmp_path)
    write_lines(tmp_path / "words.jsonl", [{"messages": turns, "answer": "x"}])
    loaded = load(config)
    assert found(loaded, messages=turns) == "words:1"
    assert found(loaded, prompt="sums 1?") == "sums:1"
    assert "no data set asks 'sums 1?'" in refusal(loaded, messages=[user("Hullo"), *turns[1:]])


def test_a_system_message_does_not_hide_the_row(tmp_path: Path):
    with_system = {"path": "sums.jsonl", "columns": {"prompt": "question"}, "system": "Be short.", "graders": {"one": 1}}
    stages = [{"name": "all", "until_step": 1, "mix": {"sums": 1}}]
    loaded = load(write_config(tmp_path, datasets={"sums": with_system}, stages=stages))
    for system in ("Be short.", "Be long."):
        assert found(loaded, messages=[{"role": "system", "content": system}, user("sums 2?")]) == "sums:2"
    assert found(loaded, messages=[user("sums 2?")]) == "sums:2"


def test_what_toolkit_predict_writes_names_its_row(tmp_path: Path, loaded: Loaded):
    rows = read_inputs([tmp_path / "sums.jsonl"], ColumnsConfig(prompt="question", completion="answer"), "error").rows
    line = answer_line(rows[3], 0, Generated((1, 2), StopReason.LENGTH), "0.5 1")
    assert line["reference"] == "sums-4"
    assert found(loaded, **line) == "sums:4"
