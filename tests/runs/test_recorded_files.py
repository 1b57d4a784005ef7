"""What a folder's files were, and what is wrong with them since."""

import pytest

from posttrain.runs.recorded_files import file_faults, record_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deeper").mkdir()
    (tmp_path / "weights").write_text("abc")
    (tmp_path / "deeper" / "state").write_text("")
    return tmp_path


def test_each_file_is_recorded_by_its_path_with_size_and_digest(folder):
    recorded = record_files(folder)
    assert {name: facts["bytes"] for name, facts in recorded.items()} == {"weights": 3, "deeper/state": 0}
    # `b2sum -l 128` of "abc"
    assert recorded["weights"]["blake2b"] == "cf4ab791c62b8d2b2109c90275287816"


def test_files_that_are_as_they_were_have_no_fault_and_others_do_not_matter(folder):
    recorded = record_files(folder)
    (folder / "added").write_text("later")
    assert list(file_faults(folder, recorded, contents=True)) == []


def test_each_fault_is_told_with_its_file(folder):
    recorded = record_files(folder)
    (folder / "weights").write_text("abcd")
    (folder / "deeper" / "state").unlink()
    assert sorted(file_faults(folder, recorded, contents=False)) == [
        "deeper/state is missing",
        "weights has 4 bytes, and had 3",
    ]


def test_contents_are_compared_only_when_asked_for(folder):
    recorded = record_files(folder)
    (folder / "weights").write_text("abd")
    assert list(file_faults(folder, recorded, contents=False)) == []
    assert list(file_faults(folder, recorded, contents=True)) == [
        "weights is not what was written (its digest differs)"
    ]


def test_a_file_that_cannot_be_read_is_named_itself(folder):
    recorded = record_files(folder)
    # /proc/self/mem is a file of the system whose first page nobody may read.
    (folder / "weights").unlink()
    (folder / "weights").symlink_to("/proc/self/mem")
    unread = {"weights": {**recorded["weights"], "bytes": (folder / "weights").stat().st_size}}
    assert list(file_faults(folder, unread, contents=True)) == ["weights cannot be read: Input/output error"]
