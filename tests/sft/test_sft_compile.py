"""Runs with compiled layers."""

import json

import pytest

from running import kill_after, metrics


@pytest.mark.long
def test_a_compiled_run_that_was_killed_goes_on_bit_for_bit(write_config, toolkit, tmp_path):
    training = {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2, "compile": True}
    sections = {"training": training, "lora": {"r": 4}}
    left_alone, killed = write_config("left_alone", **sections), write_config("killed", **sections)
    said = toolkit("toolkit-sft", left_alone)
    kill_after(4, killed, tmp_path / "runs" / "killed")
    toolkit("toolkit-sft", killed, "--resume")

    runs = tmp_path / "runs"
    assert "compiling the model's layers" in said.stdout + said.stderr
    assert metrics(runs / "killed") == metrics(runs / "left_alone")
    whole = (runs / "left_alone" / "adapter_model.safetensors").read_bytes()
    assert (runs / "killed" / "adapter_model.safetensors").read_bytes() == whole
    assert json.loads((runs / "killed" / "manifest.json").read_text())["identity"]["compiled"] is True
