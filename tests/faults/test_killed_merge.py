"""A merge that is killed or interrupted at any point leaves a complete model or none, and never touches the run."""

import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import assume, given, note, settings
from hypothesis import strategies as st

from faults.forked import After, Ended, ForkedCommands, Happening, What, in_a_process
from faults.kills import THOROUGH, contents, may_end, moments
from faults.merging import Merge
from faults.trainings import LeftAlone, Trial
from running import metrics


@dataclass(frozen=True)
class Undisturbed:
    """An undisturbed merge: what it left in the run's folder, and how it ended, also when repeated with --overwrite."""

    run: Path
    left: dict[str, bytes | None]
    ended: Ended
    again: Ended


@pytest.fixture(scope="session")
def undisturbed(
    left_alone: Callable[[str], LeftAlone], commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory
) -> Undisturbed:
    run = left_alone("sft-keep-2").run
    merge = Merge(commands, tmp_path_factory.mktemp("merged"), run)
    ended = merge.start()
    assert ended.code == 0, ended.said
    left = contents(merge.run)
    again = merge.start("--overwrite")
    assert again.code == 0, again.said
    assert contents(merge.run) == left
    return Undisturbed(run, left, ended, again)


def require_whole_or_absent(merge: Merge, left: dict[str, bytes | None], *before: bytes) -> None:
    """Assert that the merged model is absent, complete, or has the weights of one of those `before`."""
    if not merge.merged.exists():
        return
    weights = (merge.merged / "model.safetensors").read_bytes()
    if weights not in before:
        assert contents(merge.merged) == {
            name.removeprefix("merged/"): content for name, content in left.items() if name.startswith("merged/")
        }


def put_an_earlier_one(merge: Merge, left: dict[str, bytes | None]) -> bytes:
    """Put another merged model in the place of the new one and return its weights."""
    for name, content in left.items():
        if name.startswith("merged/") and content is not None:
            (merge.run / name).parent.mkdir(exist_ok=True)
            (merge.run / name).write_bytes(content)
    (merge.merged / "model.safetensors").write_bytes(b"an earlier one")
    return b"an earlier one"


FIRST_FILE = Happening("write run/.merged.new.tmp/model.safetensors")


@pytest.mark.parametrize(
    "operation",
    [
        "mkdir run/.merged.new.tmp",
        "write run/.merged.new.tmp/model.safetensors",
        "write run/.merged.new.tmp/tokenizer_config.json",
        "rename run/merged",
        "remove run/.merged.lock",
    ],
)
def test_a_merge_that_is_killed_is_done_by_the_same_command(
    operation: str, undisturbed: Undisturbed, commands: ForkedCommands, tmp_path: Path
) -> None:
    merge = Merge(commands, tmp_path, undisturbed.run)
    assert merge.start(happenings=[Happening(operation)]).code == -signal.SIGKILL
    require_whole_or_absent(merge, undisturbed.left)
    merge.finish_as_told()
    assert contents(merge.run) == undisturbed.left


def test_a_merge_in_the_place_of_another_that_is_killed_loses_no_more_than_the_other(
    undisturbed: Undisturbed, commands: ForkedCommands, tmp_path: Path
) -> None:
    for operation in ("rename run/.merged.old.tmp", "rename run/merged", "remove run/.merged.old.tmp/config.json"):
        merge = Merge(commands, tmp_path / operation.replace("/", " "), undisturbed.run)
        earlier = put_an_earlier_one(merge, undisturbed.left)
        assert merge.start("--overwrite", happenings=[Happening(operation)]).code == -signal.SIGKILL
        require_whole_or_absent(merge, undisturbed.left, earlier)
        merge.finish_as_told()
        assert contents(merge.run) == undisturbed.left


def test_an_interrupted_merge_leaves_nothing(
    undisturbed: Undisturbed, commands: ForkedCommands, tmp_path: Path
) -> None:
    merge = Merge(commands, tmp_path, undisturbed.run)
    before = contents(merge.run)
    ended = merge.start(happenings=[Happening(FIRST_FILE.operation, what="SIGINT")])
    assert (ended.code, ended.said.splitlines()[-1]) == (130, "interrupted")
    assert contents(merge.run) == before


def test_a_run_goes_on_whose_checkpoint_was_being_merged_when_everything_was_killed(
    left_alone: Callable[[str], LeftAlone], commands: ForkedCommands, tmp_path: Path
) -> None:
    alone = left_alone("sft-keep-2")
    trial = Trial(commands, alone.training, tmp_path / "trial")
    trial.kill_again_and_again([Happening("write runs/run/metrics.jsonl", 4)])
    merge = ("toolkit-merge", trial.config, "--checkpoint", "2", "--no-verify")
    half = Happening("write runs/run/.merged-checkpoint-N.new.tmp/model.safetensors")
    assert commands.run(*merge, watched=trial.folder, happenings=[half]).code == -signal.SIGKILL
    trial.finish_as_told()
    assert metrics(trial.path) == metrics(alone.run)
    weights = "adapter_model.safetensors"
    assert (trial.path / weights).read_bytes() == (alone.run / weights).read_bytes()


@pytest.mark.long
def test_ctrl_c_ends_a_merge_in_a_process_of_its_own(
    undisturbed: Undisturbed, commands: ForkedCommands, tmp_path: Path
) -> None:
    merge = Merge(commands, tmp_path / "merge", undisturbed.run)
    before = contents(merge.run)
    happening = Happening(FIRST_FILE.operation, what="SIGINT")
    ended = in_a_process(merge.command, merge.folder, [happening])
    assert (ended.code, ended.said.splitlines()[-1]) == (130, "interrupted")
    assert contents(merge.run) == before


@pytest.mark.long
@pytest.mark.parametrize(("what", "codes"), [("SIGKILL", {-signal.SIGKILL}), ("SIGINT", {130})])
@pytest.mark.parametrize("options", [(), ("--overwrite",)], ids=["", "in the place of another"])
def test_wherever_a_merge_is_ended_its_output_is_whole_or_absent_and_comes_out_the_same(
    what: What,
    codes: set[int],
    options: tuple[str, ...],
    undisturbed: Undisturbed,
    commands: ForkedCommands,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    model = moments(undisturbed.again if options else undisturbed.ended, what)

    @settings(THOROUGH, max_examples=10)
    @given(st.lists(model, min_size=1, max_size=3))
    def holds(happenings: list[Happening | After]) -> None:
        merge = Merge(commands, tmp_path_factory.mktemp("merge"), undisturbed.run)
        note(f"in {merge.folder}")
        earlier = [put_an_earlier_one(merge, undisturbed.left)] if options else []
        for each in happenings:
            ended = merge.start(*options, happenings=[each])
            assume(each is not happenings[0] or not ended.too_late)
            assert ended.code in codes | may_end(happenings, each), ended.said
            require_whole_or_absent(merge, undisturbed.left, *earlier)
        merge.finish_as_told()
        assert contents(merge.run) == undisturbed.left
        shutil.rmtree(merge.folder)

    holds()
