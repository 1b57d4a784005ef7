"""A file gets its name when it is whole, and what is written about it belongs to it."""

import errno
from pathlib import Path

import pytest

from posttrain.errors import RunError
from posttrain.export.publish import folder_aside, publish


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "model.gguf"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_file_and_its_texts_get_their_names_and_the_folder_goes(output: Path):
    with folder_aside(output) as aside:
        (aside / "made").write_text("weights")
        (aside / "a log").write_text("…")
        publish(aside / "made", output, {output.with_suffix(".Modelfile"): "FROM", output.with_suffix(".json"): "{}"})
    assert names(output.parent) == {"model.gguf", "model.Modelfile", "model.json"}
    assert output.read_text() == "weights"


def test_a_failure_leaves_nothing(output: Path):
    with pytest.raises(RunError, match="a check failed"), folder_aside(output) as aside:
        (aside / "made").write_text("weights")
        raise RunError("a check failed")
    assert names(output.parent) == set()


def test_what_a_killed_process_left_is_removed(output: Path):
    left = output.with_name(".model.gguf.new.tmp")
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    with folder_aside(output) as aside:
        assert names(aside) == set()


def test_a_full_disk_is_told_in_one_message(output: Path):
    with pytest.raises(RunError, match=r"model\.gguf was not written: No space left"), folder_aside(output):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_earlier_texts_go_before_the_file_is_replaced(output: Path):
    output.parent.mkdir()
    output.write_text("earlier")
    texts = [output.with_suffix(".Modelfile"), output.with_suffix(".json")]
    for path in texts:
        path.write_text("of the earlier file")
    with pytest.raises(FileNotFoundError):
        publish(output.with_name("not there"), output, dict.fromkeys(texts, "new"))
    assert output.read_text() == "earlier" and texts[0].read_text() == "of the earlier file"

    (output.parent / "new").write_text("new")
    texts[1].unlink()
    # The second text cannot be written, as if the process had ended there.
    with pytest.raises(FileNotFoundError):
        publish(output.parent / "new", output, {texts[0]: None, output.parent / "no folder" / "a": "text"})
    assert names(output.parent) == {"model.gguf"}
    assert output.read_text() == "new"


def test_a_link_at_the_output_stays_one(output: Path, tmp_path: Path):
    output.parent.mkdir()
    output.symlink_to(tmp_path / "elsewhere.gguf")
    with folder_aside(output) as aside:
        assert aside.parent == tmp_path  # so that the file can be renamed to its place
        (aside / "made").write_text("weights")
        publish(aside / "made", output, {})
    assert output.is_symlink() and (tmp_path / "elsewhere.gguf").read_text() == "weights"
