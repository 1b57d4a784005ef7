"""The benchmark of rollouts ahead computes its figures right, and the soak sees growth and kills engines."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from shared_weights import shared_weights

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a chat template."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        return importlib.import_module("gpu_material").write_model(tmp_path_factory.mktemp("model") / "tiny", "tiny")


def test_the_ideal_is_the_slowest_part_or_the_share_of_a_round_trip(benchmark_module: Any) -> None:
    ideal = benchmark_module("rollouts").ideal_seconds
    # Learning 2 s, engine 3 s, grader 4 s: 9 s one after the other, or 4.5 s with two generations under way, or 3 s.
    parts = {"sync": 0.5, "learn": 2.0, "load": 1.0, "generate": 2.0, "grade": 4.0}
    assert [ideal(parts, staleness) for staleness in (0, 1, 2, 3)] == [9.0, 4.5, 3.0, 3.0]
    assert ideal({**parts, "learn": 6.5}, 3) == 7.0


def test_figures_are_means_over_the_measured_steps(benchmark_module: Any) -> None:
    figures = benchmark_module("rollouts").figures
    seconds = {"sync": 0.0, "learn": 1.0, "generate": 2.0, "grade": 1.0, "wait": 1.0, "engine_idle": 0.5}
    steps = [{"seconds": {**seconds, "learn": 1.0 + (at % 2)}, "completion_tokens": 8} for at in range(10)]
    # Three steps of the warm-up, and one at the end without generation; between them, steps of 2 and 4 s.
    ends = [10.0, 20.0, 30.0, 34.0, 36.0, 40.0, 42.0, 46.0, 48.0, 48.1]
    found = figures(steps, ends, [(29.0, 31.0), (30.5, 32.0), (47.0, 50.0)], 1)
    assert found["all"] == 3.0
    assert found["learn"] == 1.5
    assert found["load"] == 0.5  # 3 s less 0.5 s idle and 2 s of generation
    assert found["ideal"] == 2.5  # the engine; a round trip is 1.5 + 2.5 + 1 s, of which two are under way
    assert found["of_ideal"] == 1.2
    assert found["judge_busy"] == 0.5  # 30 to 32 and 47 to 48, in six steps
    assert found["of_busiest"] == 1.2  # the engine again


def test_one_generation_ahead_is_judged_by_its_ideal_and_two_by_their_busiest_part_too(benchmark_module: Any) -> None:
    # Learning 1 s, generation 1 s, grading 2 s: two generations take 4 s, of which they are graded for 3 s.
    ahead = {"slow grader, k = 1, half cores": {"of_ideal": 1.0, "of_busiest": 4 / 3}}
    two_ahead = {"slow grader, k = 2, half cores": {"of_ideal": 1.1, "of_busiest": 1.2}}
    targets = [each for each in benchmark_module("targets").TARGETS if each.part == "rollouts"]
    assert [each.is_met(each.measured({**ahead, **two_ahead})) for each in targets] == [True, True, False]


def test_the_judge_answers_after_its_time_however_many_ask(benchmark_module: Any) -> None:
    judge = benchmark_module("judge")
    with judge.judging(0.05) as running:
        items = [{"item_id": str(at), "completion": text} for at, text in enumerate(["abca", "", "aa"])]
        answer = httpx.post(running.url, json={"protocol": 1, "items": items}, trust_env=False).json()
    assert answer == {"results": [{"item_id": str(at), "score": score} for at, score in enumerate([0.5, 0.0, 0.0])]}
    ((began, ended),) = running.calls
    assert ended - began >= 0.05


def test_growth_is_the_slope_after_the_warm_up_and_engines_are_compared_at_their_largest(benchmark_module: Any) -> None:
    soak = benchmark_module("soak")
    # The trainer jumps in the warm-up and then grows by 0.5 MB in 100 steps. Each engine grows by 30 MB in its life of
    # 100 steps, and takes 1 MB more than the one before.
    trainer = [soak.Sample("trainer", 1, at, 100.0 * (at > 100) + 0.005 * at) for at in range(0, 1000, 5)]
    engines = [soak.Sample("engine", 2 + at // 100, at, 300 + at // 100 + 0.3 * (at % 100)) for at in range(0, 1000, 5)]
    found = soak.growth([*trainer, *engines], 1000)
    assert found == {"trainer": pytest.approx(0.5), "engine": pytest.approx(1.0), "dataserver": 0.0}
    alone = [each._replace(pid=2) for each in engines[:20]]
    assert soak.growth(alone, 100)["engine"] == pytest.approx(30.0)


@pytest.mark.long
def test_the_benchmark_of_rollouts_runs_with_a_tiny_model(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "rollouts.py", "--short", "--model", model]
    done = subprocess.run(
        [*command, "--output", tmp_path / "rollouts.json"], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads((tmp_path / "rollouts.json").read_text())
    runs = {**numbers["once"], **numbers["rounds"][0]}
    assert list(runs) == [
        "fast grader, k = 0, half cores",
        "slow grader, k = 1, half cores",
        "slow grader, k = 2, half cores",
    ]
    assert all(run["tokens"] > 0 and run["all"] > 0 for run in runs.values())
    assert all(f"| {name} |" in done.stdout for name in runs)


@pytest.mark.long
def test_the_soak_kills_engines_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, BENCHMARKS / "soak.py", "--steps", "24", "--every", "8"]
    places = ["--folder", tmp_path / "soak", "--output", tmp_path / "soak.json"]
    done = subprocess.run([*command, *places], capture_output=True, text=True, timeout=280)
    numbers = json.loads((tmp_path / "soak.json").read_text())
    assert (numbers["exit code"], numbers["steps"]) == (0, 24), done.stderr
    assert len(numbers["ends"]) in (2, 3)  # the last step may end before the engine is found
    assert {role for role, *_ in numbers["samples"]} == {"trainer", "engine", "dataserver"}
    # Other tests use shared memory at the same time.
    assert [each for each in numbers["left"] if not each.startswith("/dev/shm")] == []
    assert not shared_weights(tmp_path / "soak" / "runs" / "soak").exists()
