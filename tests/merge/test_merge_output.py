"""The folder of a merged model: it may not be a link, and a kill between two renames loses no model."""

from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.merge.output import check_output, new_folder


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """An earlier merged model."""
    folder = tmp_path / "merged"
    folder.mkdir()
    (folder / "model.safetensors").write_text("earlier")
    return folder


def test_a_link_is_refused_so_that_what_it_leads_to_stays(earlier: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(earlier)
    with pytest.raises(ConfigError, match=r"link is a link; give the folder itself"):
        check_output(tmp_path / "link", overwrite=True, inputs=())


def test_a_model_that_a_kill_left_aside_is_kept_until_its_successor_is_whole(earlier: Path, tmp_path: Path):
    # The old folder was moved aside, but its successor was not in place yet.
    earlier.rename(tmp_path / ".merged.old.tmp")
    with pytest.raises(KeyError), new_folder(earlier) as folder:
        (folder / "model.safetensors").write_text("half")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    assert (earlier / "model.safetensors").read_text() == "earlier"


def test_a_whole_successor_takes_the_place_and_nothing_is_left_aside(earlier: Path, tmp_path: Path):
    with new_folder(earlier) as folder:
        (folder / "model.safetensors").write_text("later")
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    assert (earlier / "model.safetensors").read_text() == "later"
