"""A completion has one reward: by the dataserver's /grade, toolkit-rl-grade, toolkit-eval, and a run's evaluation."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from typer.testing import CliRunner

from posttrain.cli.eval import main as toolkit_eval
from posttrain.cli.rl_grade import main as toolkit_rl_grade
from rl.rl_runs import folder_of, lines, run
from running import metrics
from sharp_model import write_sharp_model


def test_every_way_of_grading_gives_the_same_floats(
    a_run: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    evaluation = {"every": 2, "prompts": 6, "max_new_tokens": 24, "temperature": 0.0, "samples": 1}
    model = {"name": str(write_sharp_model(tiny_model, tmp_path / "sharp")), "dtype": "float32"}
    config = a_run(model=model, evaluation=evaluation, training={"max_steps": 1}, run={"save_every": 1})
    run(config)
    trained = folder_of(config)
    [before] = [row for row in metrics(trained) if "eval_reward" in row and row["step"] == 0]
    kept = {line["sample_id"]: line for line in lines(trained / "evaluations" / "step-000000.jsonl")}
    rewards = {name: line["reward"] for name, line in kept.items()}
    assert len(set(rewards.values())) > 1, "rewards that are all alike would show nothing"
    assert before["eval_reward"] == fmean(rewards.values())

    # What the dataserver answered to /grade, by its journal.
    with closing(sqlite3.connect(config.with_name("journal.sqlite"))) as database:
        query = "SELECT sample_id, completion, reward FROM grades WHERE split = 'validation'"
        answered = [row for row in database.execute(query) if kept[row[0]]["completion"] == row[1]]
    assert {sample_id: reward for sample_id, _, reward in answered} == rewards

    # toolkit-rl-grade, for the file with the completions.
    graded = config.with_name("graded.jsonl")
    answers = trained / "evaluations" / "step-000000.jsonl"
    invoke(toolkit_rl_grade, config.with_name("data.yaml"), answers, graded)
    assert {line["sample_id"]: line["reward"] for line in lines(graded)} == rewards

    # toolkit-eval, which has the model before training make the completions again.
    measured = {
        "output": "out",
        "models": {"base": {"config": config.name, "weights": "base"}},
        "tasks": {"held_out": {"type": "graded", "config": "data.yaml", "prompts": 6}},
        "sampling": {"max_new_tokens": 24},
    }
    config.with_name("eval.yaml").write_text(yaml.safe_dump(measured))
    invoke(toolkit_eval, config.with_name("eval.yaml"))
    found = {line["sample_id"]: line for line in lines(config.parent / "out" / "base" / "held_out.jsonl")}
    assert {name: line["completion"] for name, line in found.items()} == {
        name: line["completion"] for name, line in kept.items()
    }
    assert {name: line["reward"] for name, line in found.items()} == rewards
    scores = {name: {each: part["score"] for each, part in line["components"].items()} for name, line in found.items()}
    assert scores == {name: line["scores"] for name, line in kept.items()}
    results = json.loads((config.parent / "out" / "results.json").read_text())
    assert results["tasks"]["held_out"]["measures"]["reward"]["estimates"]["base"]["value"] == before["eval_reward"]


def invoke(command: Any, *arguments: Path) -> None:
    done = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
