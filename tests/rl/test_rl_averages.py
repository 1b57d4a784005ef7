"""Reinforcement learning with an average of the weights: sampled from those in training, evaluated by the average."""

import shutil

from rl.rl_runs import WriteRun, folder_of, lines, require_same_runs, run, train_here
from running import metrics


def test_a_schedule_free_run_goes_on_bit_for_bit_and_evaluates_its_average(a_run: WriteRun) -> None:
    schedule_free = {"optimizer": "schedule_free_adamw", "schedule": "constant", "max_steps": 4}
    whole, parts = a_run("whole", training=schedule_free), a_run("parts", training=schedule_free)
    run(whole)
    run(parts)
    shutil.rmtree(folder_of(parts) / "checkpoint-4")
    (folder_of(parts) / "result.json").unlink()
    train_here(parts, resume=True)
    require_same_runs(parts, whole, last=4)


def test_an_evaluation_between_two_steps_changes_nothing_of_the_training(a_run: WriteRun) -> None:
    averaged = {"ema": {"decay": 0.5}, "max_steps": 3}
    often, never = a_run("often", training=averaged), a_run("never", training=averaged, evaluation=None)
    for config in (often, never):
        run(config)
    assert lines(folder_of(often) / "completions.jsonl") == lines(folder_of(never) / "completions.jsonl")
    trained = [row for row in metrics(folder_of(often)) if "loss" in row]
    assert trained == [row for row in metrics(folder_of(never)) if "loss" in row]
