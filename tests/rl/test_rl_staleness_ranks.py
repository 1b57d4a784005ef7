"""Two processes whose engines work ahead repeat bit for bit, wherever the engines run and however slow they are."""

from pathlib import Path
from typing import Any

import pytest

from rl.rl_runs import folder_of, lines, run, said, started, training_rows, write_run
from rl.run_processes import pausing
from running import metrics

pytestmark = pytest.mark.long

_SUBSTITUTES = {"filters": [{"kind": "mean_reward", "max": 0.5}], "rejected": "substitute", "over_sampling": 1.5}


def write(folder: Path, model: Path, **rollout: Any) -> Path:
    rollout = {**_SUBSTITUTES, "threads": 1, **rollout}
    return write_run(folder, model, rollout=rollout, training={"micro_batch_size": 2, "max_steps": 5}, evaluation=None)


def require_same_steps(one: Path, other: Path) -> None:
    assert metrics(folder_of(one)) == metrics(folder_of(other))
    assert lines(folder_of(one) / "completions.jsonl") == lines(folder_of(other) / "completions.jsonl")


def test_without_staleness_engines_in_processes_of_their_own_change_nothing(tiny_model: Path, tmp_path: Path) -> None:
    configs = [write(tmp_path / place, tiny_model, placement=place) for place in ("process", "child")]
    for config in configs:
        run(config, processes=2)
    require_same_steps(*configs)


def test_random_pauses_of_all_processes_change_nothing_two_generations_ahead(tiny_model: Path, tmp_path: Path) -> None:
    left, paused = (write(tmp_path / name, tiny_model, staleness=2) for name in ("left", "paused"))
    run(left, processes=2)
    with started(paused, processes=2) as launcher, pausing(launcher.pid, seed=2) as stopped:
        code = launcher.wait(250)
    assert code == 0, said(paused)
    assert {"trainer 0", "trainer 1", "engine 0", "engine 1"} <= stopped
    require_same_steps(left, paused)
    ages = [row.get("async/age_max", 0.0) for row in training_rows(metrics(folder_of(left)))]
    assert ages == [0.0, 1.0, 2.0, 2.0, 2.0]
