"""Only files inside the data root are read."""

import os
from pathlib import Path

import pytest

from posttrain.dataserver.config.datasets import FileDataset
from posttrain.dataserver.data.paths import confined_file
from posttrain.errors import DataError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "inner").mkdir(parents=True)
    for file in (tmp_path / "secret.jsonl", root / "rows.jsonl", root / "inner" / "rows.jsonl"):
        file.write_text("{}")
    return root


@pytest.mark.parametrize("path", ["rows.jsonl", "./rows.jsonl", "inner/../rows.jsonl", "inner/rows.jsonl"])
def test_a_file_inside_is_found(path: str, root: Path) -> None:
    assert confined_file(root, FileDataset(path=path, graders={"x": 1}).path).samefile(root / path)


@pytest.mark.parametrize("name", ["..rows.jsonl", "...", "a~b.jsonl", "rows jsonl", "-"])
def test_an_odd_name_is_no_way_out(name: str, root: Path) -> None:
    (root / name).write_text("{}")
    assert confined_file(root, FileDataset(path=name, graders={"x": 1}).path) == root / name


def test_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "link.jsonl").symlink_to("inner/rows.jsonl")
    assert confined_file(root, "link.jsonl").read_text() == "{}"


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert confined_file(tmp_path / "link", "rows.jsonl").is_file()


@pytest.mark.parametrize("target", ["../secret.jsonl", "../data/../secret.jsonl", "/etc/hostname"])
@pytest.mark.parametrize("path", ["link.jsonl", "inner/link.jsonl", "folder/secret.jsonl"])
def test_a_link_that_leads_out_is_refused(path: str, target: str, root: Path) -> None:
    (root / "folder").symlink_to("..")
    (root / "link.jsonl").symlink_to(target)
    (root / "inner" / "link.jsonl").symlink_to("../link.jsonl")
    with pytest.raises(DataError, match="data are only read inside of it"):
        confined_file(root, path)


def test_a_folder_whose_name_begins_like_the_root_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "data2").mkdir()
    (tmp_path / "data2" / "rows.jsonl").write_text("{}")
    (root / "link.jsonl").symlink_to("../data2/rows.jsonl")
    with pytest.raises(DataError, match="outside of data_root"):
        confined_file(root, "link.jsonl")


def test_what_is_no_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    (root / "ring.jsonl").symlink_to("ring.jsonl")
    for path, reason in {
        "none.jsonl": "no such file",
        "inner": "is a folder",
        "pipe.jsonl": "is a pipe or a device",
        "ring.jsonl": "cannot read|no such file",
        "n" * 300: "File name too long",
        "rows.jsonl/rows.jsonl": "cannot read|no such file",
    }.items():
        with pytest.raises(DataError, match=reason):
            confined_file(root, path)
