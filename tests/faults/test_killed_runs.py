"""A training run that is killed at any point and resumed ends as if undisturbed."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from faults.forked import ForkedCommands, Happening
from faults.kills import THOROUGH, moments, require_same_runs
from faults.trainings import LeftAlone, Trial

# From the first file to the last: the first kill hits the run, the second its resume, and so on.
FEW = [
    Happening("rename runs/run/config.yaml"),
    Happening("rename runs/run/checkpoint-N", 2),  # the first checkpoint exists
    Happening("rename runs/run/adapter_model.safetensors"),
    Happening("rename runs/run/result.json"),
]
MANY = [
    Happening("write runs/run/.manifest.json.tmp"),
    *FEW[:2],
    Happening("write runs/run/.best.tmp"),  # the best checkpoint exists, but `best` does not name it yet
    Happening("rename runs/run/.trainer/old-checkpoint-N"),
    Happening("write runs/run/metrics.jsonl"),
    Happening("write runs/run/.best.tmp"),  # the same for the last one, after which nothing is left to train
    *FEW[2:],
]


@pytest.mark.parametrize(
    ("kind", "kills"),
    [("sft-keep-2", MANY), ("dpo-cached", FEW), ("rl", FEW), pytest.param("rl-ahead", FEW, marks=pytest.mark.long)],
)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_been_left_alone(
    kind: str,
    kills: list[Happening],
    left_alone: Callable[[str], LeftAlone],
    commands: ForkedCommands,
    tmp_path: Path,
) -> None:
    trial = Trial(commands, left_alone(kind).training, tmp_path / "killed")
    trial.kill_again_and_again(kills, each_time=True)
    assert not (trial.path / "result.json").exists()
    trial.finish_as_told()
    require_same_runs(trial.path, left_alone(kind).run)


EXAMPLES = {
    "sft-keep-1": 12,
    "sft-keep-2": 10,
    "dpo-cached": 8,
    "dpo-live": 5,
    "rl": 8,
    "rl-with-its-own-dataserver": 3,
    "rl-ahead": 6,
    "rl-substitutes": 4,
    "rl-replay": 6,
}


@pytest.mark.long
@pytest.mark.parametrize("kind", EXAMPLES)
def test_wherever_a_run_is_killed_its_resume_ends_as_if_it_had_been_left_alone(
    kind: str,
    left_alone: Callable[[str], LeftAlone],
    commands: ForkedCommands,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    alone = left_alone(kind)

    @settings(THOROUGH, max_examples=EXAMPLES[kind])
    @given(moments(alone.ended), st.lists(moments(alone.resumed), max_size=2))
    def holds(first: Happening, later: list[Happening]) -> None:
        trial = Trial(commands, alone.training, tmp_path_factory.mktemp("killed") / "run")
        note(f"in {trial.folder}")
        trial.kill_again_and_again([first, *later])
        trial.finish_as_told()
        require_same_runs(trial.path, alone.run)
        trial.remove()

    holds()


# Kills while the old run is removed and the new one starts: within a checkpoint, with only the old manifest left,
# with nothing left, and at the new run's first checkpoint.
OVERWRITING = [
    Happening("remove runs/run/checkpoint-N/optimizer.pt"),
    Happening("remove runs/run/manifest.json"),
    Happening("write runs/run/.manifest.json.tmp"),
    Happening("rename runs/run/checkpoint-N"),
]


@pytest.mark.parametrize("kill", OVERWRITING, ids=lambda kill: kill.operation)
def test_a_run_that_is_killed_while_it_replaces_another_replaces_it_when_it_is_asked_again(
    kill: Happening, left_alone: Callable[[str], LeftAlone], commands: ForkedCommands, tmp_path: Path
) -> None:
    alone = left_alone("sft-keep-2")
    trial = Trial(commands, alone.training, tmp_path / "killed")
    shutil.copytree(alone.run, trial.path)
    assert trial.run("--overwrite", happenings=[kill]).code == -signal.SIGKILL
    assert trial.run("--overwrite").code == 0
    require_same_runs(trial.path, alone.run)
