"""The trained weights and the tokenizer at the root of a run."""

import pytest

from posttrain.runs.directory import RunDirectory
from posttrain.runs.export import export_checkpoint

MODEL_FILES = [
    "adapter_config.json",
    "adapter_model.safetensors",
    "model-00001-of-00002.safetensors",
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
]
# For a resume, and as PEFT writes it.
OTHER_FILES = ["optimizer.pt", "toolkit_state.json", "README.md"]


@pytest.fixture
def run(tmp_path):
    return RunDirectory(tmp_path)


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "checkpoint-5"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "shard.pt").write_text("a part of an optimizer's state")
    for name in MODEL_FILES + OTHER_FILES:
        (folder / name).write_text(f"{name} of step 5")
    return folder


def test_the_model_and_its_tokenizer_are_copied_and_those_of_a_resume_are_not(run, checkpoint):
    export_checkpoint(run, checkpoint)
    assert {path.name for path in run.path.iterdir()} == {"checkpoint-5", *MODEL_FILES}
    for name in MODEL_FILES:
        assert (run.path / name).read_text() == f"{name} of step 5"


def test_the_checkpoint_stays_as_it_was(run, checkpoint):
    export_checkpoint(run, checkpoint)
    assert {path.name for path in checkpoint.iterdir()} == {"deeper", *MODEL_FILES, *OTHER_FILES}


def test_what_was_exported_before_is_replaced(run, checkpoint):
    (run.path / "adapter_model.safetensors").write_text("of an earlier export")
    (run.path / "manifest.json").write_text("the run's own")
    export_checkpoint(run, checkpoint)
    assert (run.path / "adapter_model.safetensors").read_text() == "adapter_model.safetensors of step 5"
    assert (run.path / "manifest.json").read_text() == "the run's own"


def test_an_exported_file_is_a_copy_of_its_own(run, checkpoint):
    export_checkpoint(run, checkpoint)
    (run.path / "config.json").write_text("edited")
    assert (checkpoint / "config.json").read_text() == "config.json of step 5"


def test_what_a_link_in_the_run_leads_to_stays(run, checkpoint, tmp_path):
    elsewhere = tmp_path / "elsewhere.safetensors"
    elsewhere.write_text("in use")
    (run.path / "adapter_model.safetensors").symlink_to(elsewhere)
    export_checkpoint(run, checkpoint)
    assert elsewhere.read_text() == "in use"
    assert not (run.path / "adapter_model.safetensors").is_symlink()
