"""A run whose filters reject everything ends soon, after a bounded number of requests, and says what to do."""

from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RunError
from rl.rl_runs import WriteRun, folder_of, requests, train_here
from running import metrics

NEVER = {"type": "regex", "pattern": "no completion is like this"}
ATTEMPTS, STEPS = 2, 3
HOPELESS: dict[str, Any] = {
    "data": {"graders": dict.fromkeys(("says_a", "says_e", "says_digit"), NEVER)},
    "rollout": {
        "filters": [{"kind": "reward_spread"}],
        "rejected": "substitute",
        "attempts": ATTEMPTS,
        "over_sampling": 1.5,
        "stop_without_signal": STEPS,
    },
    "evaluation": None,
    "run": {"save_every": 1},
}


def hopeless(a_run: WriteRun, name: str, staleness: int) -> Path:
    return a_run(name, **{**HOPELESS, "rollout": {**HOPELESS["rollout"], "staleness": staleness, "threads": 1}})


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_run_without_anything_to_learn_ends_with_advice(a_run: WriteRun, staleness: int) -> None:
    config = hopeless(a_run, "hopeless", staleness)
    with pytest.raises(RunError, match=f"rejected every group for {STEPS} steps.*toolkit-rl-debug shows why"):
        train_here(config)
    assert [row["step"] for row in metrics(folder_of(config))] == list(range(1, STEPS))
    # A generation grades its own groups together with the spares, then the substitutes of each attempt.
    sent = requests(config)
    assert [sum(iteration == each for iteration, _ in sent) for each in range(STEPS)] == [1 + ATTEMPTS] * STEPS
    assert len(sent) <= (STEPS + staleness) * (1 + ATTEMPTS)


def test_steps_without_anything_to_learn_count_on_over_a_resume(a_run: WriteRun) -> None:
    whole, parts = hopeless(a_run, "whole", 0), hopeless(a_run, "parts", 0)
    with pytest.raises(RunError):
        train_here(whole)
    train_here(parts, ("training.max_steps=1",))
    for _ in range(2):  # it ends at the same step however often it is resumed
        with pytest.raises(RunError, match=f"rejected every group for {STEPS} steps"):
            train_here(parts, resume=True)
        assert metrics(folder_of(parts)) == metrics(folder_of(whole))
    assert requests(parts) == requests(whole)
    train_here(parts, ("rollout.stop_without_signal=99",), resume=True)
    assert len(metrics(folder_of(parts))) > STEPS


def test_a_run_that_generated_ahead_ends_the_same_way_when_it_is_resumed(a_run: WriteRun) -> None:
    config = hopeless(a_run, "ahead", 1)
    for resume in (False, True):
        with pytest.raises(RunError, match=f"rejected every group for {STEPS} steps"):
            train_here(config, ("run.save_every=4",), resume=resume)
        assert [row["step"] for row in metrics(folder_of(config))] == list(range(1, STEPS))
