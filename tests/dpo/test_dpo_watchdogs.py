"""What preference optimisation reports when something goes wrong, in runs where it does."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from dpo.dpo_runs import PAIRS, TRAINING, build, training_rows, write_rows, write_run
from posttrain.errors import RunError
from running import metrics


def warnings(run: Path) -> dict[str, list[int]]:
    """The steps at which each watchdog warned."""
    found: dict[str, list[int]] = {}
    for row in training_rows(metrics(run)):
        for name in row.get("warnings", []):
            found.setdefault(name, []).append(row["step"])
    return found


def spelled(ids: Iterable[int]) -> str:
    return f" {' '.join(str(int(each)) for each in ids)} "


def stages(steps: int) -> list[dict[str, Any]]:
    return [{"name": "one", "until_step": steps, "mix": {"a": 1}}]


@pytest.mark.parametrize("method", ["dpo", "kto", "orpo"])
def test_an_ordinary_run_warns_of_nothing(
    method: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = build(write_run(tmp_path, tiny_model, stages=stages(20), method={"type": method}))
    built.train()
    assert warnings(built.run.path) == {}
    assert "warning" not in capsys.readouterr().err


def test_a_loss_that_is_not_finite_names_its_pairs_and_the_last_checkpoint(tiny_model: Path, tmp_path: Path) -> None:
    training = {**TRAINING, "micro_batch_size": 1}
    run = {"save_every": 1, "keep_checkpoints": 9}
    built = build(write_run(tmp_path, tiny_model, training=training, run=run, reference={"type": "cached"}))
    plan = built.recipe.steps.plan(1)
    broken = plan.draws[plan.order[2]].row
    pairs: Any = built.data.datasets["a"]
    ids, trained = pairs.chosen.row(broken)
    answer = spelled(ids[trained][:-1])

    def spoil(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        # In step 2 the answer of the third micro-batch overflows, whatever it is batched with.
        is_there = any(answer in spelled(row) for row in inputs[0].tolist())
        has_trained = built.run.metrics.is_file() and len(training_rows(metrics(built.run.path))) == 1
        return output * math.inf if is_there and has_trained else output

    built.loaded.model.get_input_embeddings().register_forward_hook(spoil)
    with pytest.raises(RunError) as stopped:
        built.train()
    message = str(stopped.value)
    assert "loss is nan at step 2, so training stopped" in message
    assert f"it comes from {tmp_path / 'pairs.jsonl'}:{broken + 1}: look at them" in message
    assert f"the last checkpoint is {built.run.path / 'checkpoint-1'}:" in message
    assert [row["step"] for row in training_rows(metrics(built.run.path))] == [1]
    assert not (built.run.path / "checkpoint-2").exists()


def test_pairs_of_two_files_are_named_by_their_data_set(tiny_model: Path, tmp_path: Path) -> None:
    for name in ("chosen", "rejected"):
        write_rows(tmp_path / f"{name}.jsonl", [{"prompt": row["prompt"], "completion": row[name]} for row in PAIRS])
    datasets = {"a": {"accepted": "chosen.jsonl", "rejected": "rejected.jsonl"}}
    built = build(write_run(tmp_path, tiny_model, datasets=datasets))
    for parameter in built.loaded.model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(RunError, match=r"(?s)grad_norm is nan at step 1.*the rows of the step: datasets\.a line \d, "):
        built.train()


def test_an_adapter_of_zeros_has_no_gradient(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Both LoRA factors are 0, and the gradient of each is a multiple of the other, so neither can move.
    built = build(write_run(tmp_path, tiny_model))
    with torch.no_grad():
        for name, parameter in built.loaded.model.named_parameters():
            if "lora_A" in name:
                parameter.zero_()
    built.train()
    assert warnings(built.run.path) == {"zero_gradient": [1, 2, 3]}
    # While the model is its own reference, every pair has the loss ln 2.
    assert "warning at step 1: the gradient is 0 with a loss of 0.6931" in capsys.readouterr().err


def test_pairs_that_are_told_apart_far_enough_have_nothing_to_teach(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The loss of a pair is 0 once its margin reaches 1.
    built = build(write_run(tmp_path, tiny_model, stages=stages(40), method={"type": "hinge", "beta": 1.0}))
    built.train()
    steps = warnings(built.run.path)["nothing_to_learn"]
    rows = training_rows(metrics(built.run.path))
    assert steps == [row["step"] for row in rows if row["loss"] == 0] and len(steps) > 1
    assert all(row["reward_margin"] > 1 and row["grad_norm"] == 0 for row in rows if row["step"] in steps)
    # A gradient of 0 is expected in such a step.
    assert warnings(built.run.path).keys() == {"nothing_to_learn"}
    said = capsys.readouterr().err
    assert said.count("warning at step") == 1 and "every pair of the step already reaches the method's margin" in said


def test_a_pair_that_is_the_wrong_way_round_is_a_spike(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [{"prompt": f"Count {n}", "chosen": "one two three", "rejected": "nine nine"} for n in range(31)]
    other = {"prompt": "Count", "chosen": "nine nine " * 9, "rejected": "one two three"}
    training = {**TRAINING, "rows_per_step": 1, "micro_batch_size": 1, "seed": 3}
    built = build(write_run(tmp_path, tiny_model, rows=[*same, other], stages=stages(32), training=training))
    built.train()
    rows = training_rows(metrics(built.run.path))
    longest = max(rows, key=lambda row: row["tokens"])["step"]
    assert longest > 10  # where the curriculum puts it with this seed
    assert warnings(built.run.path)["loss_spike"] == [longest]
    assert f"warning at step {longest}: the loss is" in capsys.readouterr().err
