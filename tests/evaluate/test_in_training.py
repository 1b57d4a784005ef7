"""Graded answers during SFT and DPO: they choose the best checkpoint, and leave the training's numbers as they are."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml

from forked_command import run_forked
from posttrain.config.sections.evaluation import GradedEvaluationConfig
from running import metrics

GRADERS = {"says_a": {"type": "regex", "pattern": "(?s).*a.*"}, "says_e": {"type": "regex", "pattern": "(?s).*e.*"}}


def write(folder: Path, model: Path, command: str, **sections: Any) -> Path:
    """A config of 6 steps, and `eval.yaml` with the tasks `apples` and `pears`."""
    rows = [{"prompt": f"Say {number} apples.", "completion": f"{number} " * (number % 4 + 1)} for number in range(12)]
    pairs = [{**row, "chosen": row["completion"], "rejected": "no"} for row in rows]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in (rows if command == "sft" else pairs)))
    questions = "".join(json.dumps({"prompt": f"Say {number} words."}) + "\n" for number in range(20, 26))
    (folder / "questions.jsonl").write_text(questions)
    task = {"type": "graded", "path": "questions.jsonl", "gold": None}
    tasks = {"apples": {**task, "graders": {"says_a": 2, "says_e": 1}}, "pears": {**task, "graders": {"says_e": 1}}}
    evaluation = {"tasks": tasks, "graders": GRADERS, "sampling": {"max_new_tokens": 12, "batch_size": 4}}
    (folder / "eval.yaml").write_text(yaml.safe_dump(evaluation))
    config: dict[str, Any] = {
        "model": {"name": str(model), "dtype": "float32"},
        "lora": {"r": 4, "dropout": 0.1 if command == "sft" else 0.0},
        "chat": {"max_length": 128},
        "datasets": {"rows": {"path": "rows.jsonl"}},
        "stages": [{"name": "one", "until_step": 6, "mix": {"rows": 1}}],
        "training": {"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-2},
        "run": {"save_every": 2, "keep_checkpoints": 9},
        **sections,
    }
    path = folder / f"{command}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def steps(run: Path) -> list[dict[str, Any]]:
    """The lines of the training steps, without times."""
    return [{k: v for k, v in row.items() if "second" not in k} for row in metrics(run) if "loss" in row]


def succeed(*words: str | Path) -> str:
    done = run_forked(words)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_answers_are_graded_during_training_which_goes_on_as_without_them(
    command: str, tmp_path: Path, tiny_model: Path
):
    program, evaluation = f"toolkit-{command}", {"tasks": "eval.yaml", "only": ["apples"], "every": 3, "prompts": 4}
    plain = write(tmp_path, tiny_model, command)
    succeed(program, plain, "--run-name", "plain")
    graded = write(tmp_path, tiny_model, command, evaluation=evaluation)
    told = succeed(program, graded, "--run-name", "graded", "--set", "run.export=best")
    runs = tmp_path / "runs"
    assert steps(runs / "graded") == steps(runs / "plain")
    assert "held-out reward apples" in told

    evaluated = [row for row in metrics(runs / "graded") if "eval_reward" in row]
    assert [row["step"] for row in evaluated] == [0, 3, 6]
    for row in evaluated:
        file = runs / "graded" / "evaluations" / f"step-{row['step']:06d}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(lines) == 4 and {line["task"] for line in lines} == {"apples"}
        # The reward is (2 says_a + says_e) / 3.
        rewards = [(2 * line["scores"]["says_a"] + line["scores"]["says_e"]) / 3 for line in lines]
        assert [line["reward"] for line in lines] == pytest.approx(rewards)
        assert row["eval_reward"] == pytest.approx(fmean(rewards))
        assert row["eval_graders/says_a"] == pytest.approx(fmean(line["scores"]["says_a"] for line in lines))
    best = max(evaluated[1:], key=lambda row: (row["eval_reward"], -row["step"]))
    assert json.loads((runs / "graded" / "result.json").read_text())["exported"] == f"checkpoint-{best['step']}"


@pytest.mark.long
def test_a_killed_run_goes_on_with_the_same_evaluations(tmp_path: Path, tiny_model: Path):
    config = write(tmp_path, tiny_model, "sft", evaluation={"tasks": "eval.yaml", "every": 2})
    succeed("toolkit-sft", config, "--run-name", "whole")
    succeed("toolkit-sft", config, "--run-name", "cut", "--set", "training.max_steps=4")
    runs = tmp_path / "runs"
    (runs / "cut" / "evaluations" / "step-000006.jsonl").write_text("left behind\n")
    succeed("toolkit-sft", config, "--run-name", "cut", "--resume")
    for run in ("whole", "cut"):
        assert sorted(path.name for path in (runs / run / "evaluations").iterdir()) == [
            f"step-{step:06d}.jsonl" for step in (0, 2, 4, 6)
        ]
    values = [
        [{k: v for k, v in row.items() if "second" not in k} for row in metrics(runs / run) if "eval_reward" in row]
        for run in ("whole", "cut")
    ]
    assert values[0] == values[1]
    assert {"eval_reward", "eval_pears/reward", "eval_pears/graders/says_e"} <= values[0][0].keys()


@pytest.mark.long
def test_patience_counts_evaluations_without_a_better_reward(tmp_path: Path, tiny_model: Path):
    # A rate of nearly 0 changes no greedy answer, so no reward rises after the first evaluation that counts.
    config = write(
        tmp_path,
        tiny_model,
        "sft",
        evaluation={"tasks": "eval.yaml", "every": 1, "patience": 2, "only": ["pears"]},
        training={"rows_per_step": 4, "micro_batch_size": 2, "learning_rate": 1e-12},
    )
    succeed("toolkit-sft", config)
    assert max(row["step"] for row in steps(tmp_path / "runs" / "sft")) == 3


@pytest.mark.long
def test_validation_loss_and_rewards_may_be_measured_side_by_side(tmp_path: Path, tiny_model: Path):
    config = write(
        tmp_path,
        tiny_model,
        "sft",
        evaluation={"tasks": "eval.yaml", "every": 3, "at_start": False, "only": ["pears"]},
        validation={"fraction": 0.3, "every": 2},
    )
    told = succeed("toolkit-sft", config, "--dry-run")
    assert "evaluation      pears (6 prompts), every 3 steps" in told
    succeed("toolkit-sft", config)
    rows = metrics(tmp_path / "runs" / "sft")
    assert [row["step"] for row in rows if "eval_loss" in row] == [0, 2, 4, 6]
    assert [row["step"] for row in rows if "eval_reward" in row] == [3, 6]


@pytest.mark.parametrize(
    ("evaluation", "reason"),
    [
        ({"tasks": "nothing.yaml"}, "nothing.yaml"),
        ({"tasks": "eval.yaml", "only": ["plums"]}, "no graded task 'plums'"),
        ({"tasks": "eval.yaml", "min_improvement": 0.1}, "no effect without patience"),
    ],
)
def test_tasks_that_cannot_be_asked_are_refused_before_training(
    evaluation: dict[str, Any], reason: str, tmp_path: Path, tiny_model: Path
):
    config = write(tmp_path, tiny_model, "sft", evaluation=evaluation)
    done = run_forked(["toolkit-sft", config, "--dry-run"])
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_prompt_that_is_too_long_is_named(tmp_path: Path, tiny_model: Path, write_jsonl: Callable[..., Path]):
    config = write(tmp_path, tiny_model, "sft", evaluation={"tasks": "eval.yaml"})
    write_jsonl(tmp_path / "questions.jsonl", [{"prompt": "word " * 200}])
    done = run_forked(["toolkit-sft", config])
    assert done.returncode == 2
    assert "questions.jsonl:1: the prompt has" in done.stderr


def test_the_section_has_defaults():
    config = GradedEvaluationConfig.model_validate({"tasks": "eval.yaml"})
    assert (config.every, config.at_start, config.patience, config.only) == (50, True, None, ())
