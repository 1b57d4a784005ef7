"""Small training runs of each kind, for tests that kill them, interrupt them or fill their disk."""

import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import assume

from dpo.dpo_runs import TRAINING
from dpo.dpo_runs import write_run as write_dpo_run
from faults.forked import After, Ended, ForkedCommands, Happening
from rl.rl_runs import write_run as write_rl_run
from sft.small_sft import write_sft_run


@dataclass(frozen=True)
class Training:
    """A kind of training run; `write` writes its files to a folder and returns the config."""

    program: str
    write: Callable[[Path], Path]


_AHEAD: dict[str, Any] = {"max_new_tokens": 6, "staleness": 1, "threads": 1}
_TOO_EASY = [{"kind": "mean_reward", "max": 0.5}]
ROLLOUTS: dict[str, dict[str, Any]] = {
    "rl-ahead": {**_AHEAD, "segment_tokens": 4},
    "rl-substitutes": {**_AHEAD, "filters": _TOO_EASY, "rejected": "substitute", "over_sampling": 1.5},
    "rl-replay": {
        "replay": {"share": 0.5, "fill": "reserved"},
        "successes": {"threshold": 0.5, "share": 1.0},
        "filters": _TOO_EASY,
    },
}
"""Ways to make completions: ahead and in segments, ahead with substitutes, or partly by replay."""


def training_of(kind: str, model: Path, dataserver: str | None) -> Training:
    """The training of a kind: sft-keep-1, sft-keep-2, dpo-cached, dpo-live, rl, which uses the `dataserver` at that
    address, rl-with-its-own-dataserver, which starts one, or one of `ROLLOUTS`."""
    # Checkpoints at 2, 4 and 6, and at 3 if it is the best by then.
    run = {"save_every": 2, "keep_checkpoints": 2, "export": "best"}
    if kind.startswith("sft"):
        # Two micro-batches per step, and dropout.
        sft: dict[str, Any] = {"run": {**run, "keep_checkpoints": 1 if kind == "sft-keep-1" else 2}}
        return Training("toolkit-sft", lambda folder: write_sft_run(folder, model, **sft))
    if kind.startswith("dpo"):
        dpo: dict[str, Any] = {
            "run": run,
            "stages": [{"name": "one", "until_step": 6, "mix": {"a": 1}}],
            "training": {**TRAINING, "micro_batch_size": 2, "schedule": "cosine"},
            "validation": {"dataset": {"path": "held_out.jsonl"}, "every": 3},
            "reference": {"type": kind.removeprefix("dpo-")},
        }
        return Training("toolkit-dpo", lambda folder: write_dpo_run(folder, model, **dpo))
    rl: dict[str, Any] = {
        "run": run,
        "training": {"max_steps": 4},
        "evaluation": {"every": 2, "prompts": 2, "samples": 1},
    }
    if kind != "rl-with-its-own-dataserver":
        rl["dataserver"] = {"config": None, "url": dataserver}
    if kind in ROLLOUTS:
        rl["rollout"] = ROLLOUTS[kind]
        rl["run"] = {**run, "stop_seconds": 0}  # an interrupt leaves what is being made unfinished
    return Training("toolkit-rl-train", lambda folder: write_rl_run(folder, model, **rl))


class Trial:
    """A run with its own folder and cache.

    Attributes:
        path: the run's folder, as seen from this process.
    """

    def __init__(self, commands: ForkedCommands, training: Training, folder: Path) -> None:
        """`folder` is a path as the commands see it; they may have their own mounts."""
        self.folder = folder
        seen = commands.seen(folder)
        seen.mkdir(parents=True)
        training.write(seen).rename(seen / "run.yaml")
        self.path = seen / "runs" / "run"
        self._commands = commands
        self.config = folder / "run.yaml"
        self.command = (training.program, self.config)
        self.environment = {"POSTTRAIN_TOOLKIT_CACHE": str(folder / "cache")}

    def run(self, *options: str, happenings: Sequence[Happening | After] = ()) -> Ended:
        """Run the command once."""
        return self._commands.run(
            *self.command, *options, watched=self.folder, happenings=happenings, environment=self.environment
        )

    def finish_as_told(self) -> Ended:
        """Run the command again, and if it refuses, once more with the option that its message suggests."""
        ended = self.run()
        if ended.code == 2:
            assert "continue it with --resume" in ended.error
            ended = self.run("--resume")
        assert ended.code == 0, ended.said
        return ended

    def kill_again_and_again(self, kills: Sequence[Happening | After], *, each_time: bool = False) -> None:
        """Kill the run, then its resume, and so on; `each_time`: every kill must come before the command ends.

        The first run always reaches the operation of its kill. A resume does less, so it may end first. If a command
        that must die ends before a timed kill, the example is rejected.
        """
        for number, kill in enumerate(kills):
            ended = self.run(*(["--resume"] if number else []), happenings=[kill])
            must_die = each_time or number == 0
            if must_die and isinstance(kill, After):
                assume(ended.code != 0)
            assert ended.code == -signal.SIGKILL or (ended.code == 0 and not must_die), (kill, ended.said)

    def remove(self) -> None:
        """Remove the folder after success; a failed trial stays for inspection."""
        shutil.rmtree(self._commands.seen(self.folder))


@dataclass(frozen=True)
class LeftAlone:
    """An undisturbed run and how it ended; `resumed` is how a resume in its last step ended."""

    training: Training
    run: Path
    ended: Ended
    resumed: Ended


def leave_alone(commands: ForkedCommands, training: Training, folder: Path) -> LeftAlone:
    """Train to the end, then train again with a kill in the last step to see what a resume does."""
    whole = Trial(commands, training, folder / "whole")
    ended = whole.run()
    assert ended.code == 0, ended.said
    broken = Trial(commands, training, folder / "broken")
    written = "write runs/run/metrics.jsonl"
    broken.kill_again_and_again([Happening(written, ended.operations.count(written))])
    resumed = broken.run("--resume")
    assert resumed.code == 0, resumed.said
    return LeftAlone(training, whole.path, ended, resumed)
