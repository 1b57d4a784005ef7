"""`toolkit-data dedup`, `decontaminate` and `stats`: what is left out, counted and refused."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from data_cases import write_jsonl_file

TEN = "a b c d e f g h i j"
ROWS = [
    {"prompt": TEN, "completion": "one", "source": {"id": 7}},
    {"prompt": f"{TEN} ".upper(), "completion": "two"},
    {"prompt": TEN, "completion": "One"},
    {"prompt": "a b c d e f g h i z", "completion": "one"},
    {"prompt": "other words", "completion": "one"},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_jsonl_file(tmp_path / "rows.jsonl", ROWS)


def left(path: Path) -> list[int]:
    """Which of the rows are in a file, with everything in them."""
    return [ROWS.index(json.loads(line)) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ([], [0, 3, 4]),
        (["--by", "row"], [0, 1, 3, 4]),
        # The last word differs: 5 of 7 runs of five words are in both, 0.714.
        (["--near", "0.7"], [0, 4]),
        (["--near", "0.72"], [0, 3, 4]),
        (["--column", "completion"], [0, 1]),
    ],
)
def test_copies_are_left_out(rows: Path, tmp_path: Path, data: Callable, options: list[str], kept: list[int]):
    told = data("dedup", rows, tmp_path / "out.jsonl", *options).stderr
    assert left(tmp_path / "out.jsonl") == kept
    assert f"wrote {len(kept)} of 5 rows" in told and "rows.jsonl:1" in told


def test_prompts_that_have_a_held_out_prompt_are_left_out(rows: Path, tmp_path: Path, data: Callable):
    held_out = write_jsonl_file(tmp_path / "held.jsonl", [{"question": "c d e f g h"}, {"question": "Other  words"}])
    options = ("--against", held_out, "--against-column", "question", "--ngrams", "4")
    told = data("decontaminate", rows, tmp_path / "out.jsonl", *options).stderr
    assert left(tmp_path / "out.jsonl") == []
    assert "rows.jsonl:1: 100% like" in told and f"rows.jsonl:5: equals {held_out}:2" in told
    # Of the 3 runs of 4 words only "c d e f" to "e f g h": a prompt with z has all 3, too; of 13 words there is none.
    data("decontaminate", rows, tmp_path / "other.jsonl", *options[:4])
    assert left(tmp_path / "other.jsonl") == [0, 1, 2, 3]


def test_files_of_other_formats_are_read(tmp_path: Path, data: Callable):
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "completion"], ["one", "1"], ["ONE", "2"], ["two", "3"]])
    data("dedup", tmp_path / "rows.csv", tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == [{"prompt": "one", "completion": "1"}, {"prompt": "two", "completion": "3"}]


def test_the_numbers_of_files(tmp_path: Path, data: Callable, tiny_model: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl_file(tmp_path / "rows.jsonl", ROWS)
    pairs = [{"prompt": "Hi", "chosen": "long", "rejected": "x"}, {"prompt": "hi ", "chosen": "y", "rejected": "zz"}]
    write_jsonl_file(tmp_path / "pairs.jsonl", pairs)
    finished = data("stats", "rows.jsonl", "pairs.jsonl", "--tokenizer", tiny_model / "tokenizer.json")
    words = [line.split() for line in finished.stderr.splitlines()]
    assert ["rows.jsonl", "5", "2", "2", "2", "1"] in words
    assert ["pairs.jsonl", "2", "2", "2", "1", "0", "50%"] in words
    # The prompts have 19, 20, 19, 19 and 11 characters.
    assert ["rows.jsonl", "prompt", "characters", "17.6", "19", "20", "20"] in words
    assert ["pairs.jsonl", "chosen", "characters", "2.5", "1", "4", "4"] in words
    assert any(line[:3] == ["pairs.jsonl", "rejected", "tokens"] for line in words)
    assert "prompt (5), completion (5), source (1)" in finished.stderr

    (tmp_path / "model.yaml").write_text(json.dumps({"model": {"name": str(tiny_model), "backend": "hf"}}))
    by_config = data("stats", "rows.jsonl", "pairs.jsonl", "--tokenizer", tmp_path / "model.yaml")
    assert by_config.stderr == finished.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["dedup", "rows.jsonl", "rows.jsonl", "--overwrite"], "is an input"),
        (["dedup", "rows.jsonl", "there.jsonl"], "already exists"),
        (["dedup", "none.jsonl", "out.jsonl"], "no such file"),
        (["dedup", "bad.jsonl", "out.jsonl"], "bad.jsonl:2: not JSON"),
        (["dedup", "empty.jsonl", "out.jsonl"], "holds no records"),
        (["dedup", "rows.jsonl", "out.jsonl", "--near", "2"], "--near"),
        (["dedup", "rows.jsonl", "out.jsonl", "--column", "text"], "column 'text'"),
        (["decontaminate", "rows.jsonl", "out.jsonl"], "--against"),
        (["decontaminate", "rows.jsonl", "rows.jsonl", "--against", "there.jsonl", "--overwrite"], "is an input"),
        (["decontaminate", "rows.jsonl", "there.jsonl", "--against", "there.jsonl", "--overwrite"], "is an input"),
        (["decontaminate", "rows.jsonl", "out.jsonl", "--against", "none.jsonl"], "no such file"),
        (["stats", "rows.jsonl", "--tokenizer", "rows.jsonl"], "not a tokenizer.json"),
        (["stats", "rows.jsonl", "--tokenizer", "none.yaml"], "none.yaml"),
        (["stats"], "FILES"),
    ],
)
def test_wrong_input_is_refused_and_nothing_is_written(
    rows: Path, tmp_path: Path, data: Callable, arguments: list[str], reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_jsonl_file(tmp_path / "there.jsonl", ROWS[:1])
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"prompt": \n')
    (tmp_path / "empty.jsonl").write_text("\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert reason in data(*arguments, expect=2).stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_output_is_replaced_if_it_may_be(rows: Path, tmp_path: Path, data: Callable):
    (tmp_path / "there.jsonl").write_text("old\n")
    data("dedup", rows, tmp_path / "there.jsonl", "--overwrite")
    assert left(tmp_path / "there.jsonl") == [0, 3, 4]
