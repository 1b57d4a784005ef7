"""Which weights answer, and with which settings."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from predict_cases import QUESTIONS, Task
from transformers import AutoModelForCausalLM, AutoTokenizer

from merge.merge_cases import make_case, merge_case
from posttrain.config.sections.model import ModelConfig
from tiny_experts import write_tiny_experts


def merge_by_peft(model: Path, adapter: Path, folder: Path) -> Path:
    merged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
    merged.merge_and_unload().save_pretrained(folder)
    AutoTokenizer.from_pretrained(model).save_pretrained(folder)
    return folder


@pytest.fixture
def said(task: Task, run: Callable) -> Callable[..., list[str]]:
    """`said(*options)` returns the answers of the weights that the options choose."""
    task.ask(QUESTIONS[:3])

    def said_(*options: str) -> list[str]:
        run(task.config, task.folder / "in.jsonl", task.output, *options, "--overwrite")
        return task.said()

    return said_


def test_base_is_the_model_before_training_and_needs_no_run(task: Task, said: Callable, adapters: list[Path]):
    before = said("--weights", "base")
    task.trained(adapters[0])
    assert said("--weights", "base") == before
    task.change("model", adapter=str(adapters[1]))
    assert said("--weights", "base") != before


def test_the_exported_adapter_answers_unless_told_otherwise(task: Task, said: Callable, adapters: list[Path]):
    task.trained(adapters[0], {5: adapters[1], 10: adapters[2]})
    answers = [said(*options) for options in ((), ("--checkpoint", "5"), ("--checkpoint", "10"), ("--weights", "base"))]
    assert len({tuple(each) for each in answers}) == 4
    assert said("--checkpoint", "latest") == answers[2]
    assert said("--weights", "adapter") == answers[0]


def test_an_adapter_on_experts_answers_as_its_merged_model_does(task: Task, said: Callable, tmp_path: Path):
    base = ModelConfig(name=str(write_tiny_experts(tmp_path / "experts")), backend="hf", dtype="float32")
    task.change("model", name=base.name)
    case = make_case(base, tmp_path / "adapter", target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    run = task.trained(case.adapter)
    adapter = said("--weights", "adapter")
    assert adapter != said("--weights", "base")
    merge_case(case, run / "merged")
    assert said("--weights", "merged") == adapter


def test_a_merged_model_answers_as_its_adapter_does(
    task: Task, said: Callable, sharp_model: Path, adapters: list[Path]
):
    run = task.trained(adapters[0], {5: adapters[1]})
    adapter, checkpoint = said("--weights", "adapter"), said("--checkpoint", "5")
    merge_by_peft(sharp_model, adapters[0], run / "merged")
    merge_by_peft(sharp_model, adapters[1], run / "merged-checkpoint-5")
    assert said("--weights", "merged") == adapter
    assert said("--weights", "merged", "--checkpoint", "5") == checkpoint


def test_auto_takes_the_merged_model_unless_the_adapter_is_newer(
    task: Task, run: Callable, said: Callable, sharp_model: Path, adapters: list[Path]
):
    folder = task.trained(adapters[0])
    merge_by_peft(sharp_model, adapters[1], folder / "merged")  # from another adapter, to tell them apart
    adapter, merged = said("--weights", "adapter"), said("--weights", "merged")
    assert adapter != merged
    assert said() == merged
    later = (folder / "merged" / "config.json").stat().st_mtime + 10
    os.utime(folder / "adapter_config.json", (later, later))
    assert said() == adapter


def test_a_run_that_trained_all_weights_answers_by_itself(
    task: Task, said: Callable, sharp_model: Path, adapters: list[Path]
):
    base = said("--weights", "base")
    trained = merge_by_peft(sharp_model, adapters[0], task.folder / "trained")
    checkpoint = merge_by_peft(sharp_model, adapters[1], task.folder / "checkpoint")
    task.trained(trained, {3: checkpoint}, lora=None)
    assert said() not in (base, said("--checkpoint", "3"))
    assert said("--weights", "adapter") == said()


def test_a_run_is_asked_with_the_settings_of_its_training(task: Task, said: Callable, adapters: list[Path]):
    task.change("chat", default_system="Answer in one word.")
    task.trained(adapters[0])
    trained = said()
    task.change("chat", default_system=None)
    task.change("model", name="edited/since")
    assert said() == trained
    assert said("--set", "chat.default_system=null") != trained


def test_the_config_in_a_runs_folder_stands_for_the_run(
    task: Task, run: Callable, said: Callable, adapters: list[Path]
):
    answers = said("--weights", "base"), task.trained(adapters[0]), said()
    run(task.run / "config.yaml", task.folder / "in.jsonl", task.output, "--overwrite")
    assert task.said() == answers[2]


def test_the_run_is_found_by_its_name_and_folder(task: Task, said: Callable, adapters: list[Path]):
    task.trained(adapters[0])
    answers = said()
    shutil.move(task.run, task.folder / "elsewhere" / "named")
    assert said("--run-name", "named", "--set", f"run.output_dir={task.folder}/elsewhere") == answers


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "there is no run in"),
        (("--weights", "merged"), "there is no run in"),
        (("--weights", "base", "--checkpoint", "5"), "--weights base is the model before training"),
    ],
)
def test_without_a_run_only_the_base_answers(task: Task, run: Callable, options: tuple[str, ...], reason: str):
    assert reason in run(task.config, task.ask(), task.output, *options, expect=2).stderr


def test_what_a_run_lacks_is_told(task: Task, run: Callable, adapters: list[Path]):
    task.trained(None, {5: adapters[0]})
    for options, reason in [
        ((), "there is no trained model in"),
        (("--weights", "merged"), "there is no merged model in"),
        (("--checkpoint", "6"), "no checkpoint at that step; available: 5"),
    ]:
        assert reason in run(task.config, task.ask(), task.output, *options, expect=2).stderr
    assert not task.output.exists() and not task.partial.exists()


def test_an_adapter_of_another_model_is_refused_with_nothing_written(task: Task, run: Callable, adapters: list[Path]):
    task.trained(adapters[0])
    config = json.loads((task.run / "adapter_config.json").read_text())
    (task.run / "adapter_config.json").write_text(json.dumps({**config, "r": 2}))
    assert "does not fit" in run(task.config, task.ask(), task.output, expect=2).stderr
    assert not task.output.exists() and not task.partial.exists()
