"""The folder of a run: when it may be used, clearing it, and the files in it."""

import json

import pytest

from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory, check_run_directory, clear_run_directory


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path / "runs" / "mine")


@pytest.fixture
def finished(run):
    """A folder that a run has written to."""
    run.path.mkdir(parents=True)
    run.manifest.write_text("{}")
    (run.path / "checkpoint-5").mkdir()
    (run.path / "checkpoint-5" / "weights").write_text("w")
    return run


def everything(path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.parametrize(("resume", "overwrite"), [(False, False), (True, False), (False, True)])
def test_a_folder_that_is_not_there_or_empty_can_be_used(run, resume, overwrite):
    check_run_directory(run, resume=resume, overwrite=overwrite)
    assert not run.path.exists()
    run.path.mkdir(parents=True)
    check_run_directory(run, resume=resume, overwrite=overwrite)


def test_a_run_that_is_there_is_kept_unless_something_else_was_asked_for(finished):
    before = everything(finished.path)
    with pytest.raises(ConfigError, match=r"a run already exists in .*/runs/mine; .*--resume.*--overwrite.*--run-name"):
        check_run_directory(finished, resume=False, overwrite=False)
    check_run_directory(finished, resume=True, overwrite=False)
    check_run_directory(finished, resume=False, overwrite=True)
    assert everything(finished.path) == before


def test_resume_and_overwrite_at_once_are_refused_before_anything_else(run):
    with pytest.raises(ConfigError, match="contradict each other"):
        check_run_directory(run, resume=True, overwrite=True)


def test_a_folder_that_is_no_run_is_never_overwritten(run):
    run.path.mkdir(parents=True)
    (run.path / "thesis.txt").write_text("years of work")
    for options in ({"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}):
        with pytest.raises(ConfigError, match="not empty, and not a run's folder; choose another --run-name"):
            check_run_directory(run, **options)
    assert (run.path / "thesis.txt").read_text() == "years of work"


def test_a_file_in_the_place_of_the_folder_is_refused(run):
    run.path.parent.mkdir()
    run.path.write_text("a file")
    with pytest.raises(ConfigError, match=r"is a file; choose another run\.output_dir or --run-name"):
        check_run_directory(run, resume=False, overwrite=True)


def test_clearing_leaves_an_empty_folder_and_its_neighbours(finished):
    neighbour = finished.path.with_name("other")
    neighbour.mkdir()
    (neighbour / "kept").write_text("k")
    clear_run_directory(finished)
    assert everything(finished.path.parent) == ["mine", "other", "other/kept"]


def test_clearing_makes_the_folder_with_its_parents(run):
    clear_run_directory(run)
    assert everything(run.path) == []


def test_everything_of_a_run_is_in_its_folder(run):
    names = ("config", "manifest", "metrics", "ledger", "result", "plots", "trainer_private")
    paths = [getattr(run, name) for name in names]
    assert len(set(paths)) == len(names)
    assert {path.parent for path in paths} == {run.path}


def test_json_is_written_for_people_and_whole(run):
    clear_run_directory(run)
    run.write_json(run.result, {"loss": 1.5, "name": "Würfel"})
    assert run.result.read_text(encoding="utf-8") == '{\n  "loss": 1.5,\n  "name": "Würfel"\n}\n'
    run.write_json(run.result, [1])
    assert json.loads(run.result.read_text()) == [1]
    with pytest.raises(TypeError):
        run.write_json(run.result, {"not": object()})
    assert json.loads(run.result.read_text()) == [1]
    assert everything(run.path) == ["result.json"]


@pytest.mark.parametrize(("resume", "overwrite"), [(False, False), (True, False), (False, True)])
def test_what_a_trainer_leaves_that_was_stopped_before_its_run_began_is_nothing(run, resume, overwrite):
    run.trainer_private.mkdir(parents=True)
    check_run_directory(run, resume=resume, overwrite=overwrite)
    (run.path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError):
        check_run_directory(run, resume=resume, overwrite=overwrite)
