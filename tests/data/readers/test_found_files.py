"""Folders, patterns and saved data sets, read as one data set."""

import gzip
import json
from pathlib import Path

import pytest

from posttrain.base import console
from posttrain.data.readers.data_files import find_files
from posttrain.data.readers.open import open_lines, place_in
from posttrain.data.records import Columns
from posttrain.data.sources import open_data
from posttrain.errors import DataError


def row(text: str) -> dict[str, str]:
    return {"prompt": text, "completion": "a"}


@pytest.fixture
def folder(tmp_path, write_jsonl, monkeypatch):
    """Four files with the prompts a to f, in this order: one without a last line end, one with a blank line."""
    import datasets

    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "more").mkdir(parents=True)
    (tmp_path / "data" / "1.jsonl").write_text("\n".join(json.dumps(row(text)) for text in "ab"))
    (tmp_path / "data" / "2.jsonl.gz").write_bytes(gzip.compress(f"\n{json.dumps(row('c'))}\n\n".encode()))
    datasets.Dataset.from_list([row("d"), row("e")]).to_parquet(str(tmp_path / "data" / "3.parquet"))
    write_jsonl(tmp_path / "data" / "more" / "4.jsonl", [row("f")])
    (tmp_path / "data" / "notes.rst").write_text("About the data")
    (tmp_path / "data" / ".hidden.jsonl").write_text("x")
    return tmp_path


def prompts(name: str) -> list[str]:
    records = open_data(name, Columns()).read("error", require_answer=True).records
    return [record.conversation.messages[0].content for record in records]


def test_a_folder_is_its_files_in_the_order_of_their_names(folder):
    assert prompts("data") == ["a", "b", "c", "d", "e", "f"]
    assert open_data("data", Columns()).note == ("data: 4 files, in the order of their names; not read: notes.rst")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("data/*.jsonl", "ab"), ("data/**/*.jsonl", "abf"), ("data/?.jsonl*", "abc"), ("data/*.parquet", "de")],
)
def test_a_pattern_is_the_files_that_match_it(folder, pattern, expected):
    assert prompts(pattern) == list(expected)


def test_every_record_has_the_place_it_has_in_its_own_file(folder):
    source = open_lines("data", None)
    found = [(source.place(line.number), line.value["prompt"]) for line in source.lines() if line.value]
    assert found == [
        ("data/1.jsonl:1", "a"),
        ("data/1.jsonl:2", "b"),
        ("data/2.jsonl.gz:2", "c"),
        ("data/3.parquet row 1", "d"),
        ("data/3.parquet row 2", "e"),
        ("data/more/4.jsonl:1", "f"),
    ]
    numbers = [line.number for line in source.lines()]
    assert [place_in("data", number) for number in numbers] == [place for place, _ in found]
    assert len(set(numbers)) == len(numbers)


def test_a_bad_record_is_told_with_its_own_file(folder):
    (folder / "data" / "more" / "4.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"data has 1 bad record:\n  data/more/4\.jsonl:1: needs columns"):
        prompts("data")


def test_the_digest_changes_with_any_file_and_its_order(folder):
    first = open_lines("data", None).digest
    assert open_lines("data", None).digest == first
    (folder / "data" / "1.jsonl").rename(folder / "data" / "9.jsonl")
    moved = open_lines("data", None).digest
    (folder / "data" / "9.jsonl").write_text(json.dumps(row("z")))
    assert len({first, moved, open_lines("data", None).digest}) == 3


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_data_set_saved_by_datasets_is_read_by_its_split(folder, split):
    import datasets

    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list([row("g")]), "test": datasets.Dataset.from_list([row("h")])}
    )
    saved.save_to_disk(str(folder / "saved"))
    records = open_data("saved", Columns(), split).read("error", require_answer=True).records
    assert [record.conversation.messages[0].content for record in records] == [{"train": "g", "test": "h"}[split]]
    with pytest.raises(DataError, match=r"no split 'dev'; it has train, test"):
        open_data("saved", Columns(), "dev")
    saved["train"].save_to_disk(str(folder / "alone"))
    assert prompts("alone") == ["g"]


def test_a_folder_without_data_and_a_pattern_without_files_are_refused(folder):
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="empty is a folder without data files"):
        find_files(folder / "empty")
    with pytest.raises(DataError, match=r"no\*\.jsonl: no file matches"):
        find_files(folder / "no*.jsonl")
    with pytest.raises(DataError, match="has no splits"):
        open_lines("data", None, "test")


def test_a_long_reading_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(console, "_SECONDS_BETWEEN_LINES", 0)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n' * 3)
    assert len(list(open_lines(path, None).lines())) == 3
    assert capsys.readouterr().err.splitlines() == [f"reading {path}: {done} of 3 lines" for done in range(3)]
