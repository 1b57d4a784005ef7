"""`toolkit-merge` finds the run, its adapter and the output folder."""

import json
import shutil
from pathlib import Path

import pytest
from merge_cases import Case, json_of, logits_of_folder, make_base, make_case, write_run
from torch.testing import assert_close

from posttrain.errors import ConfigError
from posttrain.merge.merge import merge
from posttrain.runs.checkpoints import record_files


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return make_case(make_base(tmp_path / "base", chatml=False), tmp_path / "adapter")


@pytest.fixture
def config(case: Case, tmp_path: Path) -> Path:
    """A config whose finished run exported the adapter and kept it as checkpoints 5 and 10."""
    path = write_run(case, tmp_path)
    for step in (5, 10):
        add_checkpoint(tmp_path / "runs" / "task", step, case.adapter)
    return path


def add_checkpoint(run: Path, step: int, source: Path) -> None:
    folder = run / f"checkpoint-{step}"
    shutil.copytree(source, folder)
    (folder / "toolkit_state.json").write_text(json.dumps({"files": record_files(folder)}))


def test_the_exported_adapter_is_merged_into_the_runs_folder_and_compared(case: Case, config: Path, tmp_path: Path):
    result = merge(config)
    assert result.output == tmp_path / "runs" / "task" / "merged"
    assert result.verification is not None
    assert result.verification.max_difference < 1e-4
    assert_close(logits_of_folder(result.output, case.ids), case.logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("wanted", "name"), [("5", "merged-checkpoint-5"), ("latest", "merged-checkpoint-10")])
def test_a_checkpoint_is_merged_beside_itself(config: Path, wanted: str, name: str):
    result = merge(config, checkpoint=wanted, verify=False)
    assert result.output.name == name
    assert result.verification is None


def test_a_checkpoint_in_which_something_else_was_put_is_still_one(config: Path, tmp_path: Path):
    extra = tmp_path / "runs" / "task" / "checkpoint-10" / "mine"
    extra.mkdir()
    (extra / "notes.txt").write_text("…")
    assert merge(config, checkpoint="10", verify=False).merged > 0


def test_output_and_dtype_can_be_named(config: Path, tmp_path: Path):
    merge(config, output=tmp_path / "here", dtype="bfloat16")
    assert json_of(tmp_path / "here" / "config.json")["dtype"] == "bfloat16"


def test_the_summary_and_the_largest_difference_are_printed(config: Path, capsys: pytest.CaptureFixture[str]):
    merge(config)
    printed = " ".join(capsys.readouterr().err.split())
    assert "merged 16 of 21 tensors, 2 new tokens into" in printed
    assert "compared with the adapter: largest logit difference" in printed


def test_a_checkpoint_that_is_not_there_is_told_with_those_that_are(config: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="--checkpoint 7: no checkpoint at that step; available: 5, 10"):
        merge(config, checkpoint="7")
    (tmp_path / "runs" / "task" / "checkpoint-5" / "adapter_model.safetensors").write_bytes(b"cut off")
    with pytest.raises(ConfigError, match="--checkpoint 5: no checkpoint at that step; available: 10"):
        merge(config, checkpoint="5")


def test_a_run_that_trained_all_weights_is_told_where_its_model_is(config: Path, tmp_path: Path):
    run = tmp_path / "runs" / "task"
    (run / "adapter_config.json").unlink()
    (run / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"no adapter to merge: .*runs/task already is the model"):
        merge(config)


def test_a_run_that_has_not_ended_is_told_of_its_checkpoints(config: Path, tmp_path: Path):
    (tmp_path / "runs" / "task" / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match=r"has not finished.*--checkpoint: 5, 10"):
        merge(config)


def test_an_unknown_dtype_is_refused_with_the_choices(config: Path):
    with pytest.raises(ConfigError, match="--dtype int8: choose one of float32, bfloat16, float16"):
        merge(config, dtype="int8")


def test_merging_twice_needs_overwrite(config: Path):
    merge(config, verify=False)
    with pytest.raises(ConfigError, match="replace it with --overwrite"):
        merge(config, verify=False)
    merge(config, verify=False, overwrite=True)
