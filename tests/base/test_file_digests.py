"""The cache of file hashes: when a hash is reused and when the file is read again."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from posttrain.base import cache
from posttrain.base.cache import file_digest
from posttrain.base.files import content_digest


@pytest.fixture
def file(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose hash is cached; the minimum size is lowered to one byte and the minimum age to nothing."""
    monkeypatch.setattr(cache, "_LEAST_BYTES", 1)
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", -1)
    path = tmp_path / "data.jsonl"
    path.write_text("first\n")
    return path


def remembered(path: Path) -> str:
    """`file_digest` after the cached digest is replaced, which shows whether the cache is used."""
    (kept,) = (Path(os.environ["POSTTRAIN_TOOLKIT_CACHE"]) / "digests").iterdir()
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "digest": "remembered"}))
    return file_digest(path)


def test_the_hash_is_that_of_the_content_and_is_remembered(file: Path):
    assert file_digest(file) == content_digest(file)
    assert remembered(file) == "remembered"


def _rewritten(path: Path) -> None:
    path.write_text("other\n")


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("other\n")
    os.replace(other, path)


def _edited_with_its_time_set_back(path: Path) -> None:
    stat = path.stat()
    path.write_text("other\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def _replaced_with_its_time_set_back(path: Path) -> None:
    stat = path.stat()
    _replaced(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _changed_in_one_byte_in_place(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(2)
        file.write(b"R")


@pytest.mark.parametrize(
    "edit",
    [
        _rewritten,
        _replaced,
        _edited_with_its_time_set_back,
        _replaced_with_its_time_set_back,
        _changed_in_one_byte_in_place,
    ],
)
def test_a_file_that_was_edited_is_never_taken_for_the_old_one(file: Path, edit: Callable[[Path], None]):
    before = file_digest(file)
    # Wait for the file system's clock to advance; without the patch, a hash is cached only a minute after a change.
    moment = file.stat().st_ctime_ns
    while _clock_of(file.parent) <= moment:
        pass
    edit(file)
    after = file_digest(file)
    assert after == content_digest(file) != before


def _clock_of(folder: Path) -> int:
    """The timestamp that the file system gives to a change made now."""
    (folder / "clock").write_text("")
    return (folder / "clock").stat().st_ctime_ns


def test_a_file_that_was_just_changed_is_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path):
    monkeypatch.setattr(cache, "_SETTLED_SECONDS", 60)
    assert time.time() - file.stat().st_ctime < 60
    assert file_digest(file) == content_digest(file)
    assert not (own_cache.parent / "digests").exists()


def test_a_small_file_is_not_remembered(file: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path):
    monkeypatch.setattr(cache, "_LEAST_BYTES", 100)
    assert file_digest(file) == content_digest(file)
    assert not (own_cache.parent / "digests").exists()


def test_a_file_that_is_written_to_while_it_is_hashed_is_not_remembered(
    file: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
):
    def hash_and_write(path: Path) -> str:
        digest = content_digest(path)
        path.write_text("longer than before\n")
        return digest

    monkeypatch.setattr(cache, "content_digest", hash_and_write)
    file_digest(file)
    assert not (own_cache.parent / "digests").exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"state": 1}'])
def test_a_damaged_entry_is_made_anew(file: Path, damage: str, own_cache: Path):
    file_digest(file)
    (kept,) = (own_cache.parent / "digests").iterdir()
    kept.write_text(damage)
    assert file_digest(file) == content_digest(file)
    assert json.loads(kept.read_text())["digest"] == content_digest(file)


def test_two_files_are_remembered_each_by_itself(file: Path, tmp_path: Path):
    (tmp_path / "other").write_text("other\n")
    for _ in range(2):
        assert file_digest(file) != file_digest(tmp_path / "other")


def test_the_same_file_by_another_way_to_it_is_the_same(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file_digest(file)
    monkeypatch.chdir(tmp_path)
    assert remembered(Path("data.jsonl")) == "remembered"
