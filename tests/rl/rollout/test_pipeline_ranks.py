"""Two processes make generations together; what happens to the engine of one of them ends both alike."""

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import RunError, ServerError
from posttrain.train.recipe import UnavailableError
from ranks.connected_ranks import on_ranks
from rl.rl_recipes import WrittenServer, a_recipe
from rl.rl_runs import write_run
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


TROUBLES = [
    (lose_a_load, "the weights are lost"),
    (lose_every_load, "the weights are lost"),
    (keep_old_weights, "the engine has"),
    (fail_to_complete, "complete failed"),
]
# Each case with one kind of trouble; with the others when there is time.
TROUBLED = [
    pytest.param(
        *(case, trouble, told),
        id=f"{case}-{trouble.__name__}",
        marks=[] if place == at % len(TROUBLES) else [pytest.mark.long],
    )
    for at, case in enumerate(CASES)
    for place, (trouble, told) in enumerate(TROUBLES)
]


@pytest.mark.parametrize(("case", "trouble", "told"), TROUBLED)
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


def dawdle(engine: CountedEngine, doing: str, version: int) -> None:
    time.sleep(random.uniform(0, 0.01))


def train_slowly(case: Case, folder: Path) -> list[list[Any]]:
    random.seed(int(os.environ["RANK"]))
    return [
        train(case, folder / name, CountedEngine(each), folder / "unused").steps
        for name, each in (("quick", no_trouble), ("slow", dawdle))
    ]


@pytest.mark.parametrize("making", ["alone", "substitutes", "segments"])
def test_random_delays_of_engines_change_nothing(making: str, tmp_path: Path) -> None:
    (quick, slow), other = on_ranks(train_slowly, tmp_path, Case(making, 2), tmp_path)
    assert quick == slow
    assert [quick, slow] == other


_IMPURE = """
import os

def moody(completions, options):
    return "by mood" if os.environ["RANK"] == "1" else None
"""


def judge_in_rounds(folder: Path) -> str:
    rejection = {"filters": [_filter(folder)], "rejected": "substitute"}
    case = Case("substitutes", 1)
    return train(case, folder / "run", CountedEngine(), folder / "checkpoint", rejection=rejection).failure


def judge_what_is_trained(folder: Path) -> str:
    recipe = a_recipe(folder / "rl.yaml", WrittenServer([0.0, 1.0] * 4))
    with pytest.raises(UnavailableError) as caught:
        recipe.batch(0)
    return str(caught.value)


def _filter(folder: Path) -> dict[str, str]:
    return {"kind": "python", "path": f"{folder / 'filters.py'}:moody"}


@pytest.mark.parametrize("judge", [judge_in_rounds, judge_what_is_trained])
def test_a_filter_that_judges_otherwise_in_another_process_is_named(
    judge: Callable[[Path], str], tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "filters.py").write_text(_IMPURE)
    rollout = {"filters": [_filter(tmp_path)], "rejected": "drop"}
    write_run(tmp_path, tiny_model, rollout=rollout, training={"micro_batch_size": 2}, evaluation=None)
    for failure in on_ranks(judge, tmp_path, tmp_path):
        assert "the filter moody" in failure
