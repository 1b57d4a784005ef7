"""Ctrl-C and SIGTERM stop a run cleanly at any point, and a second signal stops it at once."""

import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from hypothesis import assume, given, note, settings

from faults.forked import After, Ended, ForkedCommands, Happening, What, in_a_process
from faults.kills import THOROUGH, moments, require_same_runs
from faults.trainings import LeftAlone, Trial
from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.directory import RunDirectory
from rl.rl_runs import training_rows
from running import metrics

Alone = Callable[[str], LeftAlone]

# While logging the second step: the initial evaluation and the first step come before it.
SECOND_STEP = ("write runs/run/metrics.jsonl", 3)
CODES: dict[What, int] = {"SIGINT": 130, "SIGTERM": 143}


def require_stopped_in_good_order(trial: Trial, ended: Ended, what: What) -> None:
    """Assert that the step under way was finished and saved after the signal, and that the last line says so."""
    assert ended.code == CODES[what], ended.said
    assert "Traceback" not in ended.said and "error:" not in ended.said
    last = ended.said.splitlines()[-1]
    pattern = rf"stopped after step (\d), which is saved in {trial.path}/checkpoint-\1; --resume continues from it"
    found = re.fullmatch(pattern, last)
    assert found, last
    step = int(found[1])
    assert 2 <= step <= 3
    assert len(training_rows(metrics(trial.path))) == step
    assert complete_checkpoints(RunDirectory(trial.path))[-1].step == step
    assert not (trial.path / "result.json").exists()


@pytest.mark.parametrize("what", CODES)
@pytest.mark.parametrize("kind", ["sft-keep-2", "dpo-cached", "rl"])
def test_a_signal_ends_a_run_after_the_step_under_way(
    kind: str, what: What, left_alone: Alone, commands: ForkedCommands, tmp_path: Path
) -> None:
    trial = Trial(commands, left_alone(kind).training, tmp_path / "trial")
    require_stopped_in_good_order(trial, trial.run(happenings=[Happening(*SECOND_STEP, what)]), what)
    trial.finish_as_told()
    require_same_runs(trial.path, left_alone(kind).run, interrupted=True)


# The second signal comes while the run's second checkpoint is written, whether scheduled or due to the first signal.
AT_ONCE = Happening("write runs/run/.trainer/checkpoint-N/.toolkit_state.json.tmp", 2, "SIGINT")


def test_a_second_signal_ends_a_run_at_once_and_leaves_the_earlier_checkpoints_whole(
    left_alone: Alone, commands: ForkedCommands, tmp_path: Path
) -> None:
    alone = left_alone("sft-keep-2")
    trial = Trial(commands, alone.training, tmp_path / "trial")
    ended = trial.run(happenings=[Happening("write runs/run/metrics.jsonl", 4, "SIGINT"), AT_ONCE])
    require_ended_at_once(trial, ended)
    trial.finish_as_told()
    require_same_runs(trial.path, alone.run, interrupted=True)


def require_ended_at_once(trial: Trial, ended: Ended) -> None:
    """Assert that nothing was written after the second signal, and that the earlier checkpoint is complete."""
    assert (ended.code, ended.said.splitlines()[-1]) == (130, "interrupted")
    assert "Traceback" not in ended.said
    assert [each.step for each in complete_checkpoints(RunDirectory(trial.path))] == [2]


def test_a_command_that_is_no_fork_is_interrupted_as_well(
    left_alone: Alone, commands: ForkedCommands, tmp_path: Path
) -> None:
    require_stops("sft-keep-2", "SIGINT", left_alone, commands, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "what"),
    [("sft-keep-2", "SIGTERM"), ("dpo-cached", "SIGINT"), ("rl-with-its-own-dataserver", "SIGINT")],
)
def test_every_trainer_is_ended_by_signals(
    kind: str, what: What, left_alone: Alone, commands: ForkedCommands, tmp_path: Path
) -> None:
    require_stops(kind, what, left_alone, commands, tmp_path)


def require_stops(kind: str, what: What, left_alone: Alone, commands: ForkedCommands, tmp_path: Path) -> None:
    """Send the signal to a process that is not a fork, then resume the run."""
    alone = left_alone(kind)
    trial = Trial(commands, alone.training, tmp_path / "trial")
    happening = Happening(*SECOND_STEP, what)
    ended = in_a_process(trial.command, trial.folder, [happening], **trial.environment)
    require_stopped_in_good_order(trial, ended, what)
    # Nor is a dataserver that it started left running.
    assert [each for each in psutil.process_iter() if str(trial.folder) in " ".join(_words(each))] == []
    trial.finish_as_told()
    require_same_runs(trial.path, alone.run, interrupted=True)


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.long
def test_a_second_signal_ends_a_process_at_once(left_alone: Alone, commands: ForkedCommands, tmp_path: Path) -> None:
    trial = Trial(commands, left_alone("sft-keep-2").training, tmp_path / "trial")
    happenings = [Happening("write runs/run/metrics.jsonl", 4, "SIGINT"), AT_ONCE]
    require_ended_at_once(trial, in_a_process(trial.command, trial.folder, happenings, **trial.environment))


@pytest.mark.long
@pytest.mark.parametrize(("what", "codes"), [("SIGINT", {130, 0}), ("SIGTERM", {143, -15, 0})])
@pytest.mark.parametrize("kind", ["sft-keep-1", "dpo-cached", "rl", "rl-ahead"])
def test_wherever_a_run_is_interrupted_its_resume_ends_as_if_it_had_been_left_alone(
    kind: str,
    what: What,
    codes: set[int],
    left_alone: Alone,
    commands: ForkedCommands,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    alone = left_alone(kind)

    @settings(THOROUGH, max_examples=4)
    @given(moments(alone.ended, what), moments(alone.resumed, what))
    def holds(first: Happening | After, second: Happening | After) -> None:
        trial = Trial(commands, alone.training, tmp_path_factory.mktemp("interrupted") / "run")
        note(f"in {trial.folder}")
        for number, happening in enumerate((first, second)):
            ended = trial.run(*(["--resume"] if number else []), happenings=[happening])
            assume(number or not ended.too_late)
            assert ended.code in codes, (happening, ended.said)
            assert "Traceback" not in ended.said
        trial.finish_as_told()
        require_same_runs(trial.path, alone.run, interrupted=True)
        trial.remove()

    holds()
