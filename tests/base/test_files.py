"""Atomic writes and renames, file digests, and checks of input files."""

import hashlib
import os
import subprocess
import sys

import pytest

from posttrain.base.files import (
    atomic_rename_dir,
    atomic_write_bytes,
    atomic_write_text,
    atomic_writer,
    content_digest,
    fsync_tree,
    require_file,
    temporary_sibling,
)
from posttrain.errors import DataError


def test_what_is_written_is_there_byte_for_byte(tmp_path):
    atomic_write_bytes(tmp_path / "a", b"\x00\r\n\xff")
    atomic_write_text(tmp_path / "b", "é\r\n\n")
    assert (tmp_path / "a").read_bytes() == b"\x00\r\n\xff"
    assert (tmp_path / "b").read_bytes() == b"\xc3\xa9\r\n\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_writer(path) as file:
        file.write(b"half of the n")
        raise RuntimeError
    with pytest.raises(UnicodeEncodeError):
        atomic_write_text(path, "half a pair: \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_sees_the_old_content_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with atomic_writer(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


def test_writing_through_a_link_replaces_the_file_and_keeps_the_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "real").write_text("old")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk" / "real")
    atomic_write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "disk" / "real").read_text() == "new"


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    atomic_write_text(tmp_path / "atomic", "")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_temporary_sibling_is_hidden_new_each_time_and_never_too_long(tmp_path):
    path = tmp_path / ("n" * 255)
    names = {temporary_sibling(path).name for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith(".") and len(name) < 80 for name in names)
    atomic_write_text(path, "the longest name that a file can have")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_renamed_with_what_is_in_it(tmp_path):
    (tmp_path / "aside").mkdir()
    (tmp_path / "aside" / "weights").write_text("w")
    (tmp_path / "run").mkdir()
    atomic_rename_dir(tmp_path / "aside", tmp_path / "run" / "checkpoint-1")
    assert (tmp_path / "run" / "checkpoint-1" / "weights").read_text() == "w"
    assert not (tmp_path / "aside").exists()


def test_a_folder_never_replaces_one_that_holds_something(tmp_path):
    for name in ("aside", "final"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    with pytest.raises(OSError):
        atomic_rename_dir(tmp_path / "aside", tmp_path / "final")
    assert (tmp_path / "final" / "file").read_text() == "final"


@pytest.mark.timeout(20)
def test_flushing_a_tree_passes_over_pipes_and_dangling_links(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "a" / "pipe")
    fsync_tree(tmp_path)


def test_the_digest_is_blake2b_of_the_bytes(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "a").write_bytes(data)
    assert content_digest(tmp_path / "a") == hashlib.blake2b(data, digest_size=16).hexdigest()


def test_what_is_no_file_is_told_in_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        tmp_path / "none": "no such file",
        tmp_path: "is a folder",
        tmp_path / "pipe": "is a pipe or a device",
        type(tmp_path)("/dev/zero"): "is a pipe or a device",
        tmp_path / "loop": "cannot read",
        tmp_path / ("n" * 300): "cannot read",
        tmp_path / "a\0b": "is not a valid file name",
    }
    for path, reason in cases.items():
        with pytest.raises(DataError, match=reason) as caught:
            require_file(path)
        assert "\n" not in str(caught.value)


def test_a_file_without_permission_is_told(tmp_path):
    (tmp_path / "a").touch(mode=0o000)
    # Root can read everything, so the process drops root after its imports.
    code = (
        "import os, sys; from pathlib import Path; from posttrain.base.files import require_file\n"
        "if os.geteuid() == 0: os.chdir(sys.argv[1]); os.setuid(65534)\n"
        "require_file(Path('a'))"
    )
    tmp_path.chmod(0o755)
    finished = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert "DataError: cannot read a: Permission denied" in finished.stderr
