"""Completions that have ended when a run is stopped are not made again, whatever makes them."""

import threading
from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, StopReason
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
    # The generation before may still be graded when the run is stopped; what it has made is kept then too.
    interrupted = stored.read_finished(tmp_path / "checkpoint").get(2 + staleness, FinishedCompletions())
    assert sum(len(request.seeds) for request in interrupted.requests()) == made


def test_they_are_read_from_a_checkpoint_as_they_were_written_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    requests = [GenerationRequest((1, 2), (7, 2**56 - 1)), GenerationRequest((1,), (7,))]
    made = {
        (0, 1): Completion((5, 6), StopReason.LENGTH, (-0.5, -2.0)),
        (1, 0): Completion((5,), StopReason.END, (-0.25,)),
    }
    finished = FinishedCompletions()
    assert finished.extend(requests, made.items()) == made
    stored.write_finished(tmp_path, 3, finished)
    read = stored.read_finished(tmp_path)
    assert read.keys() == {3}
    assert read[3].of(requests) == made
    (file,) = (tmp_path / "rollouts").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match=f"{file.name} is damaged"):
        stored.read_finished(tmp_path)
