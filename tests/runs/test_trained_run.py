"""Finding a run from the config that trained it."""

from pathlib import Path

import pytest

from posttrain.errors import ConfigError
from posttrain.runs.trained_run import load_trained_run


def write_run(folder: Path, base: str = "some/model") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"model:\n  name: {base}\nlora: null\nchat:\n  default_system: Be brief.\nstages: [anything]\nnew_key: 1\n"
    )
    (folder / "manifest.json").write_text("{}")
    return folder


def test_the_run_is_found_beside_the_config_and_read_from_its_own_copy(tmp_path: Path):
    config = tmp_path / "task.yaml"
    config.write_text("model: {name: edited/since}\nrun: {output_dir: out, save_every: 3}\n")
    folder = write_run(tmp_path / "out" / "task")
    run = load_trained_run(config)
    assert run.directory.path == folder
    assert (run.model.name, run.lora, run.chat.default_system) == ("some/model", None, "Be brief.")


def test_without_an_output_folder_in_the_config_runs_lie_in_runs(tmp_path: Path):
    config = tmp_path / "task.yaml"
    config.write_text("model: {name: some/model}\n")
    folder = write_run(tmp_path / "runs" / "task")
    assert load_trained_run(config).directory.path == folder


def test_a_name_given_beats_the_one_in_the_config_which_beats_the_files(tmp_path: Path):
    config = tmp_path / "task.yaml"
    config.write_text("run: {name: named}\n")
    named, given = write_run(tmp_path / "runs" / "named"), write_run(tmp_path / "runs" / "given")
    assert load_trained_run(config).directory.path == named
    assert load_trained_run(config, "given").directory.path == given


def test_the_config_in_a_runs_folder_stands_for_that_run(tmp_path: Path):
    folder = write_run(tmp_path / "moved" / "here")
    assert load_trained_run(folder / "config.yaml").directory.path == folder


def test_a_config_that_trained_nothing_yet_is_told_so(tmp_path: Path):
    config = tmp_path / "task.yaml"
    config.write_text("model: {name: some/model}\n")
    with pytest.raises(ConfigError, match=r"no run in .*runs/task; train with .*task\.yaml first"):
        load_trained_run(config)
