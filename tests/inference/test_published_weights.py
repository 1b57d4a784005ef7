"""Versions of the weights in folders: where they lie, how long, and that later ones leave earlier ones alone."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.inference.weight_sync import PublishedWeights, require_room
from shared_weights import shared_weights


class WrittenWeights:
    """Weights of `size` bytes, which are the number of the write."""

    adapter_rank = 0

    def __init__(self, size: int = 10) -> None:
        self.size, self.writes = size, 0

    def write_once(self, folder: Path) -> None:
        (folder / "tokenizer").write_text("the same")

    def write(self, folder: Path) -> None:
        self.writes += 1
        (folder / "weights").write_text(str(self.writes))


@pytest.fixture
def published(tmp_path: Path) -> Iterator[PublishedWeights]:
    made = PublishedWeights(WrittenWeights(), tmp_path, versions=3)
    yield made
    made.close()


def held(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_each_version_stays_as_it_was_written_until_it_is_released(published: PublishedWeights) -> None:
    start, *versions = published.start(), *(published.publish(version) for version in (0, 2, 4))
    assert [held(each) for each in (start, *versions)] == [
        {"tokenizer": "the same", "weights": str(number)} for number in (1, 2, 3, 4)
    ]
    published.release(2)
    assert [each.exists() for each in (start, *versions)] == [False, False, False, True]
    assert held(versions[-1])["weights"] == "4"


def test_a_version_is_written_once(published: PublishedWeights) -> None:
    assert held(published.publish(7)) == held(published.publish(7)) == {"tokenizer": "the same", "weights": "1"}


def test_weights_of_an_earlier_process_are_taken_over_as_they_are(published: PublishedWeights, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "weights").write_text("of before")
    assert held(published.adopt(3, kept)) == {"weights": "of before"}
    assert held(published.publish(3)) == {"weights": "of before"}


def test_they_lie_in_shared_memory_for_their_owner_alone_and_nothing_stays_behind(tmp_path: Path) -> None:
    published = PublishedWeights(WrittenWeights(), tmp_path)
    root = published.publish(0).parent.parent
    assert root == shared_weights(tmp_path)
    assert root.stat().st_mode & 0o777 == 0o700
    published.close()
    assert not root.exists()


def test_a_run_that_was_killed_leaves_nothing_to_the_next_one_of_that_name(tmp_path: Path) -> None:
    killed = PublishedWeights(WrittenWeights(), tmp_path)
    killed.publish(5)
    resumed = PublishedWeights(WrittenWeights(), tmp_path)
    assert held(resumed.publish(5))["weights"] == "1"
    resumed.close()


def test_a_name_that_is_taken_by_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    root = shared_weights(tmp_path)
    root.write_text("a file, not a folder that a killed run left behind")  # root can remove any user's folder
    try:
        with pytest.raises(ConfigError, match=rf"{root}.*run\.output_dir"):
            PublishedWeights(WrittenWeights(), tmp_path)
    finally:
        root.unlink()


def test_weights_that_do_not_fit_into_shared_memory_go_to_the_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage("/dev/shm").free
    assert shutil.disk_usage(tempfile.gettempdir()).free > 1.2 * free
    published = PublishedWeights(WrittenWeights(free), tmp_path)
    assert published.publish(0).is_relative_to(tempfile.gettempdir())
    published.close()


def test_versions_that_fit_nowhere_are_refused_with_their_size(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"3 versions of the weights .* 3072\.0 GiB.*rollout\.staleness"):
        PublishedWeights(WrittenWeights(2**40), tmp_path, 3)


def test_room_that_a_killed_run_holds_is_free_to_its_next_try_alone(tmp_path: Path) -> None:
    killed = PublishedWeights(WrittenWeights(), tmp_path / "killed")
    os.truncate(killed.publish(5) / "weights", 2**42)
    require_room(WrittenWeights(2**40), tmp_path / "killed", 3)
    with pytest.raises(ConfigError, match="3 versions of the weights"):
        require_room(WrittenWeights(2**40), tmp_path / "another", 3)
    killed.close()
