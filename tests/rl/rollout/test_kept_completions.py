"""Completions that have ended when a run is stopped are not made again, whatever makes them."""

import threading
from pathlib import Path

import pytest

from posttrain.rl.rollout.store import pending as stored
from rl.rollout.counted_pipelines import STEPS, Case, CountedEngine, train


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize(
    ("making", "made"),
    [
        # A generation is 8 completions; spares make it 12, and substitutes are asked for after these.
        ("alone", 0),
        ("alone", 7),
        ("substitutes", 3),
        ("substitutes", 13),
        ("segments", 9),  # with those that an earlier generation began
    ],
)
def test_a_resume_makes_the_rest_and_nothing_twice(making: str, staleness: int, made: int, tmp_path: Path) -> None:
    case, alone, goes_on = Case(making, staleness), CountedEngine(), threading.Event()
    whole = train(case, tmp_path / "whole", alone, tmp_path / "unused")
    assert len(whole.steps) == STEPS

    def stop(engine: CountedEngine, doing: str, version: int) -> None:
        if doing == "complete" and version == 2 and engine.made_with(2) == made:
            engine.ask_to_stop()
            goes_on.wait(30)

    stopped, resumed = CountedEngine(stop), CountedEngine()
    before = train(case, tmp_path / "stopped", stopped, tmp_path / "checkpoint")
    after = train(case, tmp_path / "resumed", resumed, tmp_path / "checkpoint")
    assert before.steps + after.steps == whole.steps
    assert sorted(stopped.made + resumed.made) == sorted(alone.made)
    goes_on.set()
    finished = stored.read_finished(tmp_path / "checkpoint")
    assert sum(len(request.seeds) for each in finished.values() for request in each.requests()) == made
