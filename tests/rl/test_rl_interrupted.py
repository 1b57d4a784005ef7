"""Ctrl-C in the middle of a generation keeps the completions that have ended: a resume makes only the others."""

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from posttrain.errors import RunInterrupted
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.process.engine import EngineProcess
from posttrain.rl.rollout.store import pending as stored
from rl.rl_runs import folder_of, lines, run, said, started, train_here, wait_for_step, write_run
from running import metrics

STEPS = 5
# Batches of two, so that a generation of 8 completions has four.
AHEAD: dict[str, Any] = {"max_new_tokens": 8, "batch_size": 2, "staleness": 1, "threads": 1}
SEGMENTS = {"segment_tokens": 5}
SUBSTITUTES = {"filters": [{"kind": "mean_reward", "max": 0.5}], "rejected": "substitute", "over_sampling": 1.5}

Hear = Callable[[EngineProcess, int], None]


def write(folder: Path, model: Path, **rollout: Any) -> Path:
    training = {"max_steps": STEPS, "micro_batch_size": 2}
    return write_run(folder, model, rollout={**AHEAD, **rollout}, training=training, evaluation=None)


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Callable[[Hear], list[Key]]:
    """`listen(hear)` lists the completions that come from engines, and calls `hear` with engine and number of each."""
    complete = EngineProcess.complete

    def of_training(hear: Hear) -> list[Key]:
        heard: list[Key] = []

        def listening(
            engine: EngineProcess,
            requests: Sequence[GenerationRequest],
            sampling: Sampling,
            finished: FinishedCompletions | None = None,
        ) -> dict[Key, Completion]:
            def note(key: Key, completion: Completion) -> None:
                heard.append(key)
                hear(engine, len(heard))

            finished = finished or FinishedCompletions()
            finished.heard = note if sampling.max_new_tokens > 1 else None  # or it is the probe
            return complete(engine, requests, sampling, finished)

        monkeypatch.setattr(EngineProcess, "complete", listening)
        return heard

    return of_training


def finished_in(config: Path) -> int:
    """How many completions of unfinished generations the newest checkpoint has."""
    checkpoint = max(folder_of(config).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    found = stored.read_finished(checkpoint).values()
    return sum(len(request.seeds) for finished in found for request in finished.requests())


def require_same_steps(one: Path, other: Path) -> None:
    assert metrics(folder_of(one)) == metrics(folder_of(other))
    assert lines(folder_of(one) / "completions.jsonl") == lines(folder_of(other) / "completions.jsonl")


@pytest.mark.parametrize(
    "rollout",
    [
        {},
        pytest.param(SEGMENTS, marks=pytest.mark.long),
        pytest.param(SUBSTITUTES, marks=pytest.mark.long),
    ],
    ids=["plain", "segments", "substitutes"],
)
def test_what_has_ended_is_in_the_checkpoint_and_not_made_again(
    rollout: dict[str, Any], listen: Callable[[Hear], list[Key]], tiny_model: Path, tmp_path: Path
) -> None:
    whole, stopped = (write(tmp_path / name, tiny_model, **rollout) for name in ("whole", "stopped"))
    everything = listen(lambda engine, number: None)
    train_here(whole)
    late = len(everything) * 3 // 4  # after the first checkpoint, however many substitutes there were

    def stop(engine: EngineProcess, number: int) -> None:
        if number == late:
            os.kill(engine.pid, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGINT)

    before = listen(stop)
    with pytest.raises(RunInterrupted):
        train_here(stopped, ("run.stop_seconds=0",))
    assert finished_in(stopped) > 0
    after = listen(lambda engine, number: None)
    train_here(stopped, resume=True)
    assert len(before) + len(after) == len(everything)
    require_same_steps(whole, stopped)


@pytest.mark.long
@pytest.mark.parametrize("rollout", [{}, SEGMENTS, SUBSTITUTES], ids=["plain", "segments", "substitutes"])
def test_two_processes_that_are_interrupted_go_on_as_if_left_alone(
    rollout: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    whole, stopped = (write(tmp_path / name, tiny_model, **rollout) for name in ("whole", "stopped"))
    run(whole, processes=2)
    with started(stopped, "--set", "run.stop_seconds=0", processes=2, forked=False) as launcher:
        wait_for_step(stopped, 2, launcher)
        ranks = psutil.Process(launcher.pid).children()
        for engine in [
            engine for rank in ranks for engine in rank.children() if "worker" in " ".join(engine.cmdline())
        ]:
            engine.suspend()
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(100) != 0
    assert "--resume continues from it" in said(stopped)
    run(stopped, "--resume", processes=2)
    require_same_steps(whole, stopped)
