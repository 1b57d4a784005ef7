"""Two processes make generations together; what happens to the engine of one of them ends both alike."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RunError, ServerError
from ranks.connected_ranks import on_ranks
from rl.rollout.counted_pipelines import STEPS, Case, CountedEngine, Trained, Trouble, no_trouble, train


def lose_a_load(engine: CountedEngine, doing: str, version: int) -> None:
    if doing == "load" and version == 1:
        raise ServerError("the weights are lost")


def lose_every_load(engine: CountedEngine, doing: str, version: int) -> None:
    if doing == "load" and version:
        raise ServerError("the weights are lost")


def keep_old_weights(engine: CountedEngine, doing: str, version: int) -> None:
    if doing == "load" and version:
        engine.version = 0


def fail_to_complete(engine: CountedEngine, doing: str, version: int) -> None:
    if doing == "complete" and version == 1:
        raise RunError("complete failed")


def interrupt(engine: CountedEngine, doing: str, version: int) -> None:
    if doing == "complete" and version == 2 and engine.made_with(2) == 2:
        engine.ask_to_stop()
        threading.Event().wait()  # the process does not wait for this thread


def go_on(case: Case, folder: Path, trouble: Trouble) -> tuple[Trained, list[Trained], list[list[Any]]]:
    """A run left alone; one that gets into trouble, and its resume; and what the engines of all three made."""
    runs, made = [], []
    for name, each in (("whole", no_trouble), ("troubled", trouble), ("resumed", no_trouble)):
        engine = CountedEngine(each)
        checkpoint = folder / ("unused" if name == "whole" else "checkpoint")
        runs.append(train(case, folder / name, engine, checkpoint))
        made.append(list(engine.made))
    return runs[0], runs[1:], made


def on_rank_1(case: Case, folder: Path, trouble: Trouble) -> Any:
    return go_on(case, folder, trouble if os.environ["RANK"] == "1" else no_trouble)


CASES = [Case("substitutes", 0, is_apart=False), *(Case("substitutes", k) for k in (0, 1, 2)), Case("alone", 1)]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (lose_a_load, "the weights are lost"),
        (lose_every_load, "the weights are lost"),
        (keep_old_weights, "the engine has"),
        (fail_to_complete, "complete failed"),
    ],
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_trouble_with_one_engine_ends_both_processes_for_its_reason_and_they_go_on_as_if_left_alone(
    case: Case, trouble: Trouble, told: str, tmp_path: Path
) -> None:
    for whole, (troubled, resumed), _ in on_ranks(on_rank_1, tmp_path, case, tmp_path, trouble):
        assert len(whole.steps) == STEPS
        assert len(troubled.steps) == 1 + case.staleness
        assert told in troubled.failure
        assert troubled.steps + resumed.steps == whole.steps


@pytest.mark.parametrize("making", ["alone", "substitutes", "segments"])
def test_neither_process_makes_anything_twice_after_an_interrupt(making: str, tmp_path: Path) -> None:
    ranks = on_ranks(go_on, tmp_path, Case(making, 1), tmp_path, interrupt)
    for whole, (stopped, resumed), (alone, before, after) in ranks:
        assert stopped.steps + resumed.steps == whole.steps
        assert sorted(before + after) == sorted(alone)
