"""Full disks and read-only folders, on real file systems."""

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, reject, settings

from faults.forked import After, Ended, ForkedCommands, Happening
from faults.forked_process import BALLAST
from faults.kills import THOROUGH, contents, moments, require_same_runs
from faults.merging import Merge
from faults.predicting import Prediction
from faults.trainings import LeftAlone, Trial
from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.directory import RunDirectory

Alone = Callable[[str], LeftAlone]
_BYTES = 64 * 2**20


@pytest.fixture(scope="session")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two folders for `boxed` commands: `small` is a separate small file system there, and `read-only`
    is not writable."""
    folder = tmp_path_factory.mktemp("disks")
    for name in ("small", "read-only"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="session")
def boxed(disks: Path, users_cache: str | None) -> Iterator[ForkedCommands]:
    """Runs the toolkit's commands in a sandbox that mounts the two `disks`."""
    small, read_only = disks / "small", disks / "read-only"
    sandbox = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/"]
    mounts = ["--size", str(_BYTES), "--tmpfs", small, "--ro-bind", read_only, read_only]
    with ForkedCommands([*sandbox, *map(str, mounts)]) as forking:
        yield forking


@pytest.fixture
def small(boxed: ForkedCommands, disks: Path) -> Iterator[Path]:
    """The small disk, empty."""
    yield disks / "small"
    for each in boxed.seen(disks / "small").iterdir():
        shutil.rmtree(each)


def make_room(commands: ForkedCommands, folder: Path) -> None:
    """Remove the file that fills the disk, if the command did not end before the disk was filled."""
    (commands.seen(folder) / BALLAST).unlink(missing_ok=True)


def require_told(ended: Ended, *named: str | Path) -> None:
    """Assert that the command failed with one line that names a full disk and each of `named`."""
    # torch's file writer does not pass on the system's error.
    reasons = ("No space left on device", "a file could not be written in full")
    assert any(reason in ended.error for reason in reasons), ended.said
    assert "\n" not in ended.error
    for each in named:
        assert str(each) in ended.error, ended.said


# Applied to one run in turn; room is made before each resume.
FULL = {
    "the first line of metrics": Happening("write runs/run/metrics.jsonl", 1, "disk full"),
    "the first file of a checkpoint": Happening("mkdir runs/run/.trainer/checkpoint-N", 2, "disk full"),
    "the last file of a checkpoint": Happening(
        "write runs/run/.trainer/checkpoint-N/.toolkit_state.json.tmp", 1, "disk full"
    ),
    "a pointer": Happening("write runs/run/.latest.tmp", 2, "disk full"),
    "the export": Happening("write runs/run/.adapter_model.safetensors.tmp", 1, "disk full"),
    "a plot": Happening("write runs/run/plots/loss.png", 1, "disk full"),
    "the result": Happening("write runs/run/.result.json.tmp", 1, "disk full"),
}


def test_a_run_whose_disk_is_full_again_and_again_goes_on_once_there_is_room(
    left_alone: Alone, boxed: ForkedCommands, small: Path
) -> None:
    alone = left_alone("sft-keep-2")
    trial = Trial(boxed, alone.training, small / "run")
    for number, (what, happening) in enumerate(FULL.items()):
        before = newest_whole_step(trial)
        ended = trial.run(*(["--resume"] if number else []), happenings=[happening])
        assert ended.code == 1, (what, ended.said)
        require_told(ended, trial.folder / "runs" / "run", "--resume", "free space")
        assert newest_whole_step(trial) >= before, what
        make_room(boxed, trial.folder)
    assert not (trial.path / "result.json").exists()
    trial.finish_as_told()
    require_same_runs(trial.path, alone.run)
    trial.remove()


def newest_whole_step(trial: Trial) -> int:
    """The step of the newest complete checkpoint, or 0."""
    return max((each.step for each in complete_checkpoints(RunDirectory(trial.path))), default=0)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sft-keep-1", "dpo-cached", "rl"])
def test_wherever_the_disk_is_full_a_run_goes_on_once_there_is_room(
    kind: str, left_alone: Alone, boxed: ForkedCommands, small: Path
) -> None:
    alone = left_alone(kind)
    numbers = count()

    @settings(THOROUGH, max_examples=6)
    @given(moments(alone.ended, "disk full"))
    def holds(happening: Happening | After) -> None:
        trial = Trial(boxed, alone.training, small / str(next(numbers)))
        ended = trial.run(happenings=[happening])
        make_room(boxed, trial.folder)
        if ended.too_late:
            trial.remove()
            reject()
        # A short file may still fit in the rest of another file's last block.
        assert ended.code in (0, 1, 2), ended.said
        if ended.code:
            require_told(ended, trial.folder)
        trial.finish_as_told()
        require_same_runs(trial.path, alone.run)
        trial.remove()

    holds()


@pytest.mark.parametrize(
    "operation",
    [
        "mkdir run/.merged.new.tmp",
        "write run/.merged.new.tmp/model.safetensors",
        "write run/.merged.new.tmp/config.json",
    ],
)
def test_a_merge_whose_disk_is_full_leaves_nothing_and_says_so(
    operation: str, left_alone: Alone, boxed: ForkedCommands, small: Path
) -> None:
    merge = Merge(boxed, small / "merge", left_alone("sft-keep-2").run)
    before = contents(merge.run)
    ended = merge.start(happenings=[Happening(operation, 1, "disk full")])
    require_told(ended, merge.folder / "run" / "merged")
    assert contents(merge.run) == before
    make_room(boxed, merge.folder)
    assert merge.start().code == 0
    assert (merge.merged / "model.safetensors").is_file()
    shutil.rmtree(boxed.seen(merge.folder))


def test_a_prediction_whose_disk_is_full_keeps_its_answers_and_goes_on(
    tiny_model: Path, boxed: ForkedCommands, small: Path
) -> None:
    whole = Prediction(boxed, small / "whole", tiny_model)
    assert whole.start().code == 0
    starved = Prediction(boxed, small / "starved", tiny_model)
    for operation in ("write .out.partial.tmp", "write out.partial", "write out/.b.jsonl.tmp"):
        before = starved.answers
        ended = starved.start(happenings=[Happening(operation, 1, "disk full")])
        require_told(ended, starved.folder / "out")
        assert before <= starved.answers
        make_room(boxed, starved.folder)
    assert starved.start().code == 0
    assert starved.left == whole.left


def test_a_folder_that_may_not_be_written_to_is_refused_before_anything_is_trained(
    left_alone: Alone, commands: ForkedCommands, boxed: ForkedCommands, disks: Path
) -> None:
    alone = left_alone("sft-keep-2")
    trial = Trial(commands, alone.training, disks / "read-only" / "run")
    new = boxed.run(*trial.command, watched=trial.folder, environment=trial.environment)
    assert (new.code, new.error) == (
        2,
        f"run.output_dir: {trial.folder} is not writable; name another folder",
    )
    trial.kill_again_and_again([Happening("write runs/run/metrics.jsonl", 4)])
    before = contents(trial.folder)
    resumed = boxed.run(*trial.command, "--resume", watched=trial.folder, environment=trial.environment)
    assert resumed.code == 2, resumed.said
    assert "is not writable" in resumed.error and "\n" not in resumed.error
    assert contents(trial.folder) == before


def test_an_output_that_may_not_be_written_to_is_refused_before_a_model_is_loaded(
    left_alone: Alone, tiny_model: Path, commands: ForkedCommands, boxed: ForkedCommands, disks: Path
) -> None:
    merge = Merge(commands, disks / "read-only" / "merge", left_alone("sft-keep-2").run)
    prediction = Prediction(commands, disks / "read-only" / "predict", tiny_model)
    for each in (merge, prediction):
        refused = boxed.run(*each.command, watched=each.folder)
        assert refused.code == 2, refused.said
        assert "cannot be written: Read-only file system" in refused.error and "\n" not in refused.error
