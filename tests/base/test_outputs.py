"""A bad output path is refused before the work; an output file appears complete or not at all."""

import json
import os
from pathlib import Path

import pytest

from posttrain.base.outputs import check_output, checked_output, output_lines
from posttrain.errors import ConfigError


def refusal(output: Path, *inputs: Path, overwrite: bool = False) -> str:
    with pytest.raises(ConfigError) as caught:
        check_output(output, inputs, overwrite=overwrite)
    return str(caught.value)


def test_a_file_that_is_there_is_replaced_only_when_told_so(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    check_output(output, [], overwrite=False)
    output.write_text("mine")
    assert refusal(output) == (f"{output} already exists; choose another name, or replace it with --overwrite")
    check_output(output, [], overwrite=True)
    assert output.read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
def test_no_input_is_ever_an_output_under_any_of_its_names(tmp_path: Path, overwrite: bool):
    source = tmp_path / "in.jsonl"
    source.write_text("{}\n")
    (tmp_path / "link").symlink_to(source)
    os.link(source, tmp_path / "hard")
    (tmp_path / "sub").mkdir()
    for output in (source, tmp_path / "link", tmp_path / "hard", tmp_path / "sub/../in.jsonl"):
        assert refusal(output, source, overwrite=overwrite) == (f"{output} is an input; give the output another name")


def test_a_journal_that_is_not_there_yet_is_no_output_either(tmp_path: Path):
    journal = tmp_path / "journal.sqlite"
    assert "is an input" in refusal(journal, journal)


def test_a_place_where_no_file_can_be_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    assert "is a folder; the output must be a file" in refusal(tmp_path)
    assert refusal(tmp_path / "file/a/b") == (
        f"{tmp_path}/file/a/b cannot be written: {tmp_path}/file is a file, not a folder"
    )


def test_a_place_where_the_system_makes_no_file_is_told_when_it_is_opened():
    with (
        pytest.raises(ConfigError, match=r"^/proc/graded.jsonl cannot be written: "),
        output_lines(Path("/proc/graded.jsonl")),
    ):
        pass


def test_the_file_takes_its_name_when_all_of_it_is_written(tmp_path: Path):
    output = tmp_path / "new/folder/out.jsonl"
    with output_lines(output) as write:
        write({"reward": 0.5})
        write({"text": "ü"})
        assert not output.exists()
    assert [json.loads(line) for line in output.read_text().splitlines()] == [{"reward": 0.5}, {"text": "ü"}]
    assert [path.name for path in output.parent.iterdir()] == ["out.jsonl"]


def test_what_was_there_stays_if_the_work_fails(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    output.write_text("old")
    with pytest.raises(ZeroDivisionError), output_lines(output) as write:
        write({"reward": 1 / 0})
    assert output.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_without_an_output_lines_go_nowhere():
    with output_lines(None) as write:
        write({"reward": 1.0})


def test_a_locked_output_is_refused_even_by_a_dry_run(tmp_path: Path):
    output = tmp_path / "out.jsonl"
    with checked_output(output, [], overwrite=False):
        for dry_run in (False, True):
            with (
                pytest.raises(ConfigError, match="being written"),
                checked_output(output, [], overwrite=False, dry_run=dry_run),
            ):
                pass
    assert list(tmp_path.iterdir()) == []
