"""A run whose newest checkpoint is damaged resumes from the one before, says so, and ends as if undisturbed."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from faults.forked import Ended, ForkedCommands, Happening
from faults.kills import contents, require_same_runs
from faults.trainings import LeftAlone, Trial

WEIGHTS = "adapter_model.safetensors"
# While logging the fifth of six steps, after two evaluations; for RL, after all four steps.
STOPS = {
    "sft-keep-2": Happening("write runs/run/metrics.jsonl", 7),
    "dpo-cached": Happening("write runs/run/metrics.jsonl", 7),
    "rl": Happening("rename runs/run/result.json"),
}
LONGER = [pytest.param(kind, marks=pytest.mark.long) for kind in ("dpo-cached", "rl")]
KINDS = ["sft-keep-2", *LONGER]


def cut_short(checkpoint: Path) -> str:
    """Truncate the weights to half their size."""
    size = (checkpoint / WEIGHTS).stat().st_size
    os.truncate(checkpoint / WEIGHTS, size // 2)
    return f"{WEIGHTS} has {size // 2:,} bytes instead of {size:,}"


def lose_the_optimizer(checkpoint: Path) -> str:
    (checkpoint / "optimizer.pt").unlink()
    return "optimizer.pt is missing"


def change_one_byte(checkpoint: Path) -> str:
    """Flip one bit in the middle of the weights."""
    weights = bytearray((checkpoint / WEIGHTS).read_bytes())
    weights[len(weights) // 2] ^= 1
    (checkpoint / WEIGHTS).write_bytes(weights)
    return f"{WEIGHTS} is not what was written (its digest differs)"


def lose_the_state(checkpoint: Path) -> str:
    (checkpoint / "toolkit_state.json").unlink()
    return "toolkit_state.json is missing or damaged"


# Each damages a checkpoint and returns the reason that the message must give.
DAMAGES = [cut_short, lose_the_optimizer, change_one_byte, lose_the_state]


@dataclass(frozen=True)
class Stopped:
    """A killed run; `older` and `newest` are the folder names of its two newest checkpoints."""

    alone: LeftAlone
    trial: Trial
    older: str
    newest: str


@pytest.fixture(scope="module")
def stopped(
    left_alone: Callable[[str], LeftAlone], commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Stopped]:
    """`stopped(kind)` returns a run of that kind, killed after its second checkpoint or a later one.

    Each call restores the same run in the same folder, as it was when it was killed.
    """

    @cache
    def killed(kind: str) -> tuple[Trial, Path]:
        trial = Trial(commands, left_alone(kind).training, tmp_path_factory.mktemp("stopped") / "trial")
        trial.kill_again_and_again([STOPS[kind]], each_time=True)
        kept = trial.folder / "kept"
        return trial, shutil.copytree(trial.path, kept)

    def of(kind: str) -> Stopped:
        trial, kept = killed(kind)
        shutil.rmtree(trial.path)
        shutil.copytree(kept, trial.path)
        *_, older, newest = sorted(path.name for path in trial.path.glob("checkpoint-*"))
        assert (trial.path / "latest").read_text() == newest
        return Stopped(left_alone(kind), trial, older, newest)

    return of


def told(trial: Trial, ended: Ended) -> list[str]:
    """The lines of the output on where the run resumes and on damaged checkpoints."""
    lines = ended.said.splitlines()
    return [line for line in lines if line.startswith(f"resuming {trial.path}") or "damaged" in line]


def going_on(trial: Trial, checkpoint: str) -> str:
    return f"resuming {trial.path} from step {checkpoint.removeprefix('checkpoint-')}"


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_damaged_checkpoint_goes_on_from_the_one_before_and_says_so(
    kind: str,
    damage: Callable[[Path], str],
    stopped: Callable[[str], Stopped],
) -> None:
    before = stopped(kind)
    trial = before.trial
    reason = damage(trial.path / before.newest)
    damaged = contents(trial.path / before.newest)
    ended = trial.run("--resume")
    assert ended.code == 0, ended.said
    assert told(trial, ended) == [
        going_on(trial, before.older),
        f"  {before.newest} is damaged and kept as damaged-{before.newest}: {reason}",
    ]
    aside = trial.path / f"damaged-{before.newest}"
    assert contents(aside) == damaged
    shutil.rmtree(aside)
    require_same_runs(trial.path, before.alone.run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_its_newest_checkpoint_goes_on_from_the_one_before(
    kind: str, stopped: Callable[[str], Stopped]
) -> None:
    before = stopped(kind)
    trial = before.trial
    shutil.rmtree(trial.path / before.newest)
    ended = trial.run("--resume")
    assert ended.code == 0, ended.said
    assert told(trial, ended) == [going_on(trial, before.older)]
    require_same_runs(trial.path, before.alone.run)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(
    kind: str, stopped: Callable[[str], Stopped]
) -> None:
    before = stopped(kind)
    trial = before.trial
    (trial.path / ".lock").unlink()  # left by the killed process
    newest, older = cut_short(trial.path / before.newest), lose_the_optimizer(trial.path / before.older)
    left = contents(trial.path)
    ended = trial.run("--resume")
    assert ended.code == 2, ended.said
    assert ended.error == (
        f"every checkpoint in {trial.path} is damaged, so there is nothing to resume from:\n"
        f"  {before.newest}: {newest}\n"
        f"  {before.older}: {older}\n"
        "restore the files, start again with --overwrite, or start another run with --run-name"
    )
    assert contents(trial.path) == left
