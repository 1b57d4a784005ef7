"""The real vLLM gives the same answers as transformers, with and without an adapter."""

import subprocess
from pathlib import Path

import pytest
from predict_cases import OTHER_TURNS, Task, require_ends

from running import BIN
from sharp_model import write_adapter
from vllm_model import write_vllm_model

ROWS = [{"prompt": "One"}, {"prompt": "Two, and somewhat longer"}, {"prompt": "Three"}]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_vllm_model(tiny_model, tmp_path_factory.mktemp("predict"))
    (folder / "generation_config.json").unlink()  # it names nearly every token as an end token
    return folder


@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "adapted"])
def test_vllm_gives_the_greedy_answers_of_transformers(task: Task, model: Path, tmp_path: Path, adapted: bool) -> None:
    task.change("model", name=str(model))
    if adapted:
        task.trained(write_adapter(model, tmp_path / "adapter", 1))
    rows, weights = task.ask(ROWS), "adapter" if adapted else "base"
    for engine in ("hf", "vllm"):
        output = tmp_path / f"{engine}.jsonl"
        options = ["--weights", weights, "--set", f"generation.engine={engine}"]
        subprocess.run([BIN / "toolkit-predict", task.config, rows, output, *options], check=True)
    assert task.said(tmp_path / "vllm.jsonl") == task.said(tmp_path / "hf.jsonl")
    assert len(set(task.said(tmp_path / "hf.jsonl"))) > 1


def test_a_control_token_that_begins_a_turn_ends_an_answer_there_too(task: Task, model: Path, tmp_path: Path) -> None:
    # The model without favourites generates each of its 384 tokens now and then.
    task.change("model", name=str(model.with_name("plain")))
    task.change("chat", template=OTHER_TURNS)
    task.change("generation", engine="vllm", n=100, temperature=1.0, max_new_tokens=60, logprobs=True)
    asked = task.ask(ROWS[:1])
    subprocess.run([BIN / "toolkit-predict", task.config, asked, task.output, "--weights", "base"], check=True)
    require_ends(task, {0, 1, 2})


@pytest.mark.long
def test_shards_that_vllm_answers_are_joined(task: Task, model: Path, tmp_path: Path) -> None:
    task.change("model", name=str(model))
    task.change("generation", engine="vllm", batch_size=1)
    command = [BIN / "toolkit-predict", task.config, task.ask(ROWS)]
    whole = tmp_path / "whole.jsonl"
    for output, *options in ((whole,), (task.output, "--shard=1/2"), (task.output, "--shard=2/2")):
        subprocess.run([*command, output, "--weights", "base", *options], check=True)
    subprocess.run([*command, task.output, "--weights", "base", "--join"], check=True)
    assert task.said() == task.said(whole)
    assert [line["row"] for line in task.answers()] == [0, 1, 2]
