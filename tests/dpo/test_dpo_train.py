"""A whole run: what it writes, what it learns, and that its result can be merged and used for predictions."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from dpo.dpo_runs import PAIRS, TRAINING, build, training_rows, write_rows, write_run
from posttrain.config.load import load_config
from posttrain.conversation.chatml import render, text
from posttrain.conversation.messages import parse_conversation
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.train import preference_results, train
from posttrain.errors import RunError
from posttrain.inference.weights import choose_weights
from posttrain.merge.merge import merge
from posttrain.predict.generate import predict
from posttrain.predict.plan import PredictJob
from posttrain.runs.metrics import read_metrics
from running import metrics

HELD_OUT = {"dataset": {"path": "held_out.jsonl"}, "every": 2}


def started(path: Path, *overrides: str) -> dict[str, Any]:
    return train(load_config(path, DPOConfig, list(overrides)), path.stem)


def test_a_run_leaves_its_numbers_plots_and_adapter(
    tiny_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = started(write_run(tmp_path, tiny_model, validation=HELD_OUT))
    run = tmp_path / "runs" / "run"
    rows = read_metrics(run / "metrics.jsonl")
    steps = training_rows(rows)
    assert [row["step"] for row in steps] == [1, 2, 3]
    # At the start the model is its own reference: the loss is −log σ(0), and every pair is a tie.
    assert steps[0]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert rows[0]["eval_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert [row["step"] for row in rows if "eval_loss" in row] == [0, 2, 3]

    assert json.loads((run / "result.json").read_text()) == result
    assert result["exported"] == "checkpoint-3"
    assert result["loss"] == steps[-1]["loss"]
    for name in ("reward_accuracy", "reward_margin", "chosen_reward", "rejected_logprob"):
        assert result[name] == steps[-1][name]
        assert result["held_out"][name] == {"before": rows[0][f"eval_{name}"], "after": rows[-1][f"eval_{name}"]}
    assert result["trained_tokens"] == sum(row["trained_tokens"] for row in steps)
    assert {path.stem for path in (run / "plots").iterdir()} == {
        "loss",
        "margin",
        "accuracy",
        "rewards",
        "logprobs",
        "learning_rate",
    }
    assert json.loads((run / "manifest.json").read_text())["command"] == "toolkit-dpo"
    assert [ledger["rows"] for ledger in json.loads((run / "ledger.json").read_text())] == [4, 7]
    said = " ".join(capfd.readouterr().err.split())
    assert "Held-out rows, first evaluation against last" in said
    assert "accuracy: chosen above rejected 0.500" in said
    assert "step 3: validation loss" in said


def test_an_adapter_and_its_checkpoints_have_the_template_of_training(tiny_model: Path, tmp_path: Path) -> None:
    chat = {"max_length": 256, "default_system": "Be brief."}
    started(write_run(tmp_path, tiny_model, chat=chat))
    run = tmp_path / "runs" / "run"
    messages = [{"role": "user", "content": "Say one"}, {"role": "assistant", "content": "one"}]
    expected = text(render(parse_conversation(messages), default_system="Be brief."))
    for folder in (run, run / "checkpoint-3"):
        assert AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False) == expected


def test_before_and_after_are_the_first_and_the_last_evaluation() -> None:
    rows = [
        {"step": 0, "eval_loss": 0.7, "eval_reward_margin": 0.0},
        {"step": 1, "loss": 0.7, "reward_margin": 0.0},
        {"step": 1, "eval_loss": 0.6, "eval_reward_margin": 0.2},
        {"step": 2, "loss": 0.5, "reward_margin": 0.4, "divergence": 0.1},
        {"step": 2, "eval_loss": 0.5, "eval_reward_margin": 0.3},
    ]
    counters = {"tokens": 500, "trained_tokens": 200, "seconds": 2.0}
    assert preference_results(rows, counters) == {
        "loss": 0.5,
        "validation_loss": 0.5,
        "trained_tokens": 200,
        "tokens_per_second": 250.0,
        "reward_margin": 0.4,
        "divergence": 0.1,
        "held_out": {"loss": {"before": 0.7, "after": 0.5}, "reward_margin": {"before": 0.0, "after": 0.3}},
    }
    assert preference_results(rows[:2], counters)["held_out"] == {}


@pytest.mark.parametrize(
    "method",
    [
        {"type": "dpo"},
        {"type": "ipo"},
        {"type": "hinge"},
        {"type": "robust"},
        {"type": "exo"},
        {"type": "apo_zero"},
        {"type": "apo_down"},
        {"type": "kto"},
        {"type": "orpo"},
        {"type": "simpo"},
        {"type": "cpo"},
        {"type": "mixture", "losses": [{"type": "dpo"}, {"type": "sft"}]},
        {"type": "mixture", "losses": [{"type": "simpo"}, {"type": "sft"}]},
    ],
    ids=lambda method: "+".join(each["type"] for each in method.get("losses", [method])),
)
def test_every_method_learns_to_tell_the_pairs_apart(method: dict[str, Any], tiny_model: Path, tmp_path: Path) -> None:
    stages = [{"name": "one", "until_step": 25, "mix": {"a": 1}}]
    # Answers of similar length: cpo compares sums, which penalise long answers.
    rows = [{"prompt": row["prompt"], "chosen": "one two", "rejected": "six seven"} for row in PAIRS]
    built = build(write_run(tmp_path, tiny_model, rows=rows, method=method, stages=stages))
    built.train()
    steps = training_rows(metrics(built.run.path))
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert steps[-1]["reward_margin"] > max(0, steps[0]["reward_margin"])
    assert steps[-1]["reward_accuracy"] == 1.0


def test_a_run_answers_as_it_was_taught_and_so_does_what_is_merged(tiny_model: Path, tmp_path: Path) -> None:
    config = write_run(
        tmp_path,
        tiny_model,
        rows=[{"prompt": row["prompt"], "chosen": "one", "rejected": "two three"} for row in PAIRS],
        method={"type": "mixture", "losses": [{"type": "dpo"}, {"type": "sft"}]},
        stages=[{"name": "one", "epochs": 60}],
        training={**TRAINING, "max_grad_norm": 1.0, "schedule": "cosine"},
        generation={"max_new_tokens": 4, "temperature": 0},
    )
    started(config)
    write_rows(tmp_path / "questions.jsonl", [{"prompt": row["prompt"]} for row in PAIRS])
    merge(config)
    for weights in ("adapter", "merged"):
        generation = load_config(config, DPOConfig).generation
        output = tmp_path / f"{weights}.jsonl"
        predict(PredictJob(choose_weights(config, weights), generation, tmp_path / "questions.jsonl", output))
        answers = [json.loads(line)["messages"][-1]["content"] for line in output.read_text().splitlines()]
        assert answers == ["one"] * 4


def test_what_is_merged_after_training_from_an_adapter_is_the_trained_one(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "sft").mkdir()
    first = build(write_run(tmp_path / "sft", tiny_model, method={"type": "simpo"}))
    first.train()
    first.loaded.model.save_pretrained(tmp_path / "sft" / "adapter")
    model = {"name": str(tiny_model), "adapter": str(tmp_path / "sft" / "adapter"), "dtype": "float32"}
    config = write_run(tmp_path, tiny_model, model=model, lora=..., reference={"type": "live"})
    started(config)
    merged = load_file(merge(config).output / "model.safetensors")
    base, adapter = (load_file(path) for path in (tiny_model / "model.safetensors", _exported(tmp_path)))
    name = "model.layers.0.self_attn.q_proj"
    a, b = (adapter[f"base_model.model.{name}.lora_{which}.weight"] for which in "AB")
    # alpha / r of the adapter is 32 / 4.
    torch.testing.assert_close(merged[f"{name}.weight"], base[f"{name}.weight"] + 8 * b @ a, atol=1e-6, rtol=1e-5)
    reference = load_file(tmp_path / "sft" / "adapter" / "adapter_model.safetensors")
    assert not torch.allclose(reference[f"base_model.model.{name}.lora_B.weight"], b, atol=1e-3)


def _exported(folder: Path) -> Path:
    return folder / "runs" / "run" / "adapter_model.safetensors"


def test_training_stops_early_once_validation_no_longer_improves(tiny_model: Path, tmp_path: Path) -> None:
    # The held-out pairs prefer the answers that training rejects, so the first step is the best.
    rows = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in PAIRS]
    config = write_run(
        tmp_path,
        tiny_model,
        stages=[{"name": "one", "until_step": 40, "mix": {"a": 1}}],
        validation={"dataset": {"path": "other.jsonl"}, "every": 1, "patience": 2, "at_start": False},
        run={"save_every": 50, "export": "best"},
    )
    write_rows(tmp_path / "other.jsonl", rows)
    result = started(config)
    losses = {row["step"]: row["eval_loss"] for row in metrics(tmp_path / "runs" / "run") if "eval_loss" in row}
    assert losses[1] < min(losses[2], losses[3])
    assert result["steps"] == 3
    assert result["exported"] == "checkpoint-1"


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"is nan at step [23].*Lower training\.learning_rate"):
        started(write_run(tmp_path, tiny_model, training={**TRAINING, "learning_rate": 1e30}))
    assert not (tmp_path / "runs" / "run" / "result.json").exists()
    assert not list((tmp_path / "runs" / "run").glob("checkpoint-*"))


def test_stages_follow_each_other_in_their_order(tiny_model: Path, tmp_path: Path) -> None:
    config = write_run(
        tmp_path,
        tiny_model,
        datasets={"a": {"path": "pairs.jsonl"}, "b": {"path": "held_out.jsonl"}},
        stages=[
            {"name": "first", "until_step": 2, "mix": {"b": 1}},
            {"name": "second", "epochs": 1.0, "mix": {"a": 1}},
            {"name": "third", "epochs": 1.0},
        ],
    )
    result = started(config)
    rows = training_rows(metrics(tmp_path / "runs" / "run"))
    # The 4 pairs of a are one step; the 11 of both are three.
    assert [row["stage"] for row in rows] == ["first", "first", "second", "third", "third", "third"]
    assert result["max_steps"] == 6
