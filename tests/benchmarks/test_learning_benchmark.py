"""What runs learn is compared over prompts, with means over seeds, and runs that are there are not repeated."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def learning(benchmark_module: Any) -> Any:
    return benchmark_module("learning")


def a_run(rewards: dict[str, float], curve: tuple[float, ...], start: str = "one") -> dict[str, Any]:
    held_out = {str(10 * number): value for number, value in enumerate(curve)}
    return {"start": start, "prompts": rewards, "held out": held_out}


def test_a_difference_is_the_mean_over_prompts_of_the_mean_over_seeds(learning: Any) -> None:
    base = {"1": a_run({"a": 0.0, "b": 1.0}, (0.0,)), "2": a_run({"a": 0.0, "b": 0.0}, (0.0,))}
    other = {"1": a_run({"a": 1.0, "b": 1.0}, (0.0,)), "2": a_run({"a": 1.0, "b": 1.0}, (0.0,))}
    mean, low, high = learning.compared({learning.BASE: base}, other)
    assert mean == 0.75  # a: (1 + 1) / 2, b: (0 + 1) / 2
    assert low < mean < high


def test_seeds_that_only_one_side_has_are_left_out(learning: Any) -> None:
    base = {"1": a_run({"a": 0.0}, (0.0,))}
    other = {"1": a_run({"a": 0.5}, (0.0,)), "2": a_run({"a": 1.0}, (0.0,))}
    assert learning.compared({learning.BASE: base}, other)[0] == 0.5


def test_a_seed_with_different_starting_weights_is_left_out(learning: Any) -> None:
    base = {"1": a_run({"a": 0.0}, (0.0,)), "2": a_run({"a": 0.0}, (0.0,), start="two")}
    other = {"1": a_run({"a": 0.5}, (0.0,)), "2": a_run({"a": 1.0}, (0.0,))}
    assert learning.compared({learning.BASE: base}, other)[0] == 0.5


def test_the_table_says_when_a_variant_reaches_most_of_what_was_gained(learning: Any) -> None:
    base = {"1": a_run({"a": 0.5}, (0.25, 0.45, 0.5))}  # 80 % of the gain is 0.45
    slow = {"1": a_run({"a": 0.25}, (0.25, 0.3, 0.44))}
    numbers = {learning.BASE: base, "staleness 1": slow, "staleness 2": {}}
    table = learning.markdown(numbers, {learning.BASE: 15.0, "staleness 1": 9.0})
    head, _, first, second = table.splitlines()
    assert head.endswith("| steps to 45.0% | minutes to it |")
    assert first.endswith("|  | 10 | 2.5 |")
    assert "-25.0%" in second
    assert second.endswith("| never |  |")


@pytest.mark.long  # minutes
def test_runs_are_made_once_and_compared(tmp_path: Path, tiny_model: Path) -> None:
    output, folder = tmp_path / "numbers.json", tmp_path / "runs"
    command = [sys.executable, BENCHMARKS / "learning.py", "--short", "--folder", folder, "--model", tiny_model]
    command += ["--output", output, "--jobs", "2"]
    first = subprocess.run(command, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr
    names = ("staleness_0", "staleness_1", "staleness_2", "substitutes", "shuffled")
    assert all((folder / f"{name}-1" / "result.json").is_file() for name in names)
    assert len(first.stdout.splitlines()) == 2 + len(names)
    shutil.rmtree(folder / "staleness_1-1")  # known from the file
    again = subprocess.run(command, capture_output=True, text=True)
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")
    timed = subprocess.run([*command, "--time"], capture_output=True, text=True)
    assert timed.returncode == 0, timed.stderr
    kept = json.loads(output.read_text())
    assert set(kept["seconds per step"]) == {"staleness 0", "staleness 1", "staleness 2", "substitutes"}
    assert set(kept["runs"]) == {*kept["seconds per step"], "shuffled"}
