"""Finishing a run: the export, the numbers in result.json, and the peak memory."""

import json
import subprocess
import sys

import pytest

from posttrain.errors import ConfigError, RunError
from posttrain.runs.checkpoints import mark_best, publish
from posttrain.runs.directory import RunDirectory, clear_run_directory
from posttrain.runs.finish import export_checkpoint, finish_run, finished_result, finished_run, summary
from posttrain.runs.manifest import describe_run
from posttrain.runs.metrics import append_metrics
from posttrain.runs.plots import Picture

COUNTERS = {"step": 2, "rows": 8, "tokens": 1234, "trained_tokens": 400, "seconds": 2.04, "order_hash": "0" * 16}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    clear_run_directory(directory)
    return directory


@pytest.fixture
def trained(run):
    """A run of two steps with a checkpoint after each, the first one marked best."""
    append_metrics(run.metrics, {"step": 0, "eval_loss": 2.5})
    for step, loss in ((1, 2.0), (2, 1.25)):
        append_metrics(run.metrics, {"step": step, "stage": "a", "loss": loss, "learning_rate": 0.1})
        private = run.trainer_private / f"checkpoint-{step}"
        private.mkdir(parents=True)
        (private / "adapter_model.safetensors").write_text(f"step {step}")
        checkpoint = publish(run, step, {"counters": {**COUNTERS, "step": step}})
        if step == 1:
            mark_best(run, checkpoint)
    append_metrics(run.metrics, {"step": 2, "eval_loss": 2.75})
    return run


def test_the_result_holds_the_last_numbers_of_the_run(trained):
    result = finish_run(trained, "last", max_steps=5)
    assert result.pop("peak_memory_gib") > 0.01
    assert result == {
        "directory": str(trained.path),
        "steps": 2,
        "max_steps": 5,
        "exported": "checkpoint-2",
        "loss": 1.25,
        "validation_loss": 2.75,
        "tokens": 1234,
        "trained_tokens": 400,
        "seconds": 2.0,
        "tokens_per_second": 604.9,  # 1234 / 2.04
    }


def test_the_result_is_in_the_folder_too(trained):
    result = finish_run(trained, "last", max_steps=2)
    assert json.loads(trained.result.read_text()) == result
    assert {path.name for path in trained.plots.iterdir()} == {"loss.png", "learning_rate.png"}


def test_a_kind_of_run_adds_numbers_and_pictures_of_its_own(trained):
    pictures = {
        "own": Picture("loss, twice", {"one": "loss", "other": "eval_loss"}),
        "nothing": Picture("what no line has", {"none": "no such key"}),
    }
    result = finish_run(
        trained,
        "last",
        max_steps=2,
        pictures=pictures,
        results=lambda rows, counters: {"first": rows[0]["step"], "answers": counters["rows"]},
    )
    assert result["answers"] == 8 and "loss" not in result
    assert result["first"] == json.loads(trained.result.read_text())["first"] == 0
    assert [path.name for path in trained.plots.iterdir()] == ["own.png"]


@pytest.mark.parametrize(("export", "step"), [("last", 2), ("best", 1)])
def test_the_weights_that_were_asked_for_are_exported(trained, export, step):
    assert finish_run(trained, export, max_steps=2)["exported"] == f"checkpoint-{step}"
    assert (trained.path / "adapter_model.safetensors").read_text() == f"step {step}"


def test_without_a_best_the_last_is_exported(trained):
    (trained.path / "best").unlink()
    assert finish_run(trained, "best", max_steps=2)["exported"] == "checkpoint-2"


def test_a_run_without_validation_says_so(trained):
    rows = [line for line in trained.metrics.read_text().splitlines() if "eval_loss" not in line]
    trained.metrics.write_text("\n".join(rows) + "\n")
    result = finish_run(trained, "last", max_steps=2)
    assert result["validation_loss"] is None
    assert "validation loss" not in summary(result)


def test_a_run_that_left_no_checkpoint_has_failed(run):
    with pytest.raises(RunError, match="no complete checkpoint was written to"):
        finish_run(run, "last", max_steps=2)
    assert not run.result.exists()


def test_a_finished_run_is_known_as_such_unless_more_steps_are_asked_for(trained):
    assert finished_result(trained, 2) is None
    result = finish_run(trained, "last", max_steps=2)
    assert finished_result(trained, 1) == finished_result(trained, 2) == result
    assert finished_result(trained, 3) is None


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"steps": 2}', '{"max_steps": null}'])
def test_a_damaged_result_tells_nothing_so_that_the_run_is_finished_once_more(trained, damaged):
    trained.result.write_text(damaged)
    assert finished_result(trained, 2) is None


def test_a_finished_run_is_not_taken_for_another(trained, capsys):
    trained.write_json(trained.manifest, describe_run({"lora": {"r": 8}, "datasets": {"a": "digest"}}, "toolkit-sft"))
    result = finish_run(trained, "last", max_steps=2)
    with pytest.raises(ConfigError, match=r"lora\.r: 8 → 16"):
        finished_run(trained, 2, {"lora": {"r": 16}})
    assert finished_run(trained, 3, {"lora": {"r": 16}}) is None  # more steps: the resume refuses the change
    capsys.readouterr()
    assert finished_run(trained, 2, {"lora": {"r": 8}}) == result
    assert "is finished: nothing is left to resume" in capsys.readouterr().err


def test_a_best_checkpoint_that_changed_on_disk_is_not_exported(trained, capsys):
    (trained.path / "checkpoint-1" / "adapter_model.safetensors").write_text("step 9")
    assert finish_run(trained, "best", max_steps=2)["exported"] == "checkpoint-2"
    assert "the best checkpoint is missing or damaged" in capsys.readouterr().err


def test_the_summary_is_two_lines_for_a_person(trained):
    result = {**finish_run(trained, "last", max_steps=2), "peak_memory_gib": 1.26}
    assert summary(result) == (
        "2 steps, 1,234 tokens in 2 s (605 tok/s), loss 1.2500, validation loss 2.7500, peak memory 1.3 GiB\n"
        f"checkpoint-2 is exported to {trained.path}; plots are in its plots folder"
    )


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
# Two files for a resume, and PEFT's README.
OTHER_FILES = ["optimizer.pt", "toolkit_state.json", "README.md"]


@pytest.fixture
def checkpoint(run):
    folder = run.path / "checkpoint-5"
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


CODE = """
from posttrain.runs.finish import peak_memory_bytes
print(peak_memory_bytes())
block = bytearray(100_000_000)
print(peak_memory_bytes())
del block
print(peak_memory_bytes())
"""


def test_it_grows_with_what_is_taken_and_stays_when_it_is_given_back():
    before, taken, after = peaks()
    assert 95_000_000 < taken - before < 110_000_000
    assert abs(after - taken) < 5_000_000  # the kernel counts in batches of pages


def test_it_knows_nothing_of_the_process_that_started_it():
    small = peaks()[0]
    block = bytearray(500_000_000)
    assert abs(peaks()[0] - small) < 50_000_000
    assert len(block) == 500_000_000


def peaks() -> list[int]:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]
