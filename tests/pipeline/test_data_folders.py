"""A pipeline's steps depend on every file of a folder or pattern of data."""

from pathlib import Path

import pytest

from posttrain.config.sections.datasets import DatasetConfig
from posttrain.pipeline.named_files import file_digests
from posttrain.pipeline.overlap import prompts_in


@pytest.fixture
def folder(tmp_path: Path, write_jsonl) -> Path:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        write_jsonl(tmp_path / "data" / f"{name}.jsonl", [{"instruction": f"{name}?", "input": "", "output": "c"}])
    return tmp_path / "data"


@pytest.mark.parametrize("path", ["data", "data/*.jsonl"])
def test_a_change_in_any_file_of_the_data_is_seen(folder: Path, path: str):
    config = DatasetConfig(path=str(folder.parent / path))
    before = file_digests(config)
    assert list(before) == ["path[0]", "path[1]"]
    (folder / "b.jsonl").write_text("{}\n")
    after = file_digests(config)
    assert after["path[0]"] == before["path[0]"] and after["path[1]"] != before["path[1]"]
    (folder / "c.jsonl").write_text("{}\n")
    assert len(file_digests(config)) == 3


def test_the_prompts_of_a_folder_in_another_format_are_looked_at(folder: Path):
    found = [(Path(place).name, text) for place, text in prompts_in(folder, "train", None)]
    assert found == [("a.jsonl:1", "a?"), ("b.jsonl:1", "b?")]
