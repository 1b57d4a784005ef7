"""What a process reports when it loses another: real processes connected by Gloo, one of which is killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from posttrain.errors import RunError, ServerError
from posttrain.runs.checkpoints import publish
from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import lost_a_rank, ranks_explained

# Two steps together; then the victim is killed while the other process waits for it in the third.
TOGETHER = """
import os, signal, sys
from pathlib import Path

import torch
from torch import distributed, nn

from posttrain.runs.directory import RunDirectory
from posttrain.runs.failures import ranks_explained

what, folder, victim = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=2)
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))


def step():
    if what == "backward":
        model(torch.ones(4, 3)).sum().backward()
    else:
        distributed.all_gather_object([None, None], {"rank": rank})


try:
    with ranks_explained(RunDirectory(folder / "run")):
        step()
        step()
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        step()
finally:
    os.kill(os.getpid(), signal.SIGTERM)  # as torchrun does when one of its processes ended
"""


def together(what: str, folder: Path, victim: int) -> subprocess.CompletedProcess[str]:
    """The outcome of the process that was not killed."""
    processes = []
    for rank in (0, 1):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-c", TOGETHER, what, str(folder), str(victim)]
        processes.append(
            subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    try:
        ended = [(*process.communicate(timeout=100), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert ended[victim][2] == -signal.SIGKILL
    out, error, code = ended[1 - victim]
    return subprocess.CompletedProcess([], code, out, error)


@pytest.mark.parametrize(("what", "victim"), [("backward", 0), ("gather", 1)])
def test_a_process_that_lost_another_one_says_so_and_what_to_do(what: str, victim: int, tmp_path: Path) -> None:
    survivor = together(what, tmp_path, victim)
    assert survivor.returncode == 1
    assert survivor.stderr.splitlines()[-1].endswith(
        "posttrain.errors.RunError: another of this run's 2 processes ended: it was killed, or its own output says "
        "why; no checkpoint had been written, so --resume, with 2 processes again, starts from the beginning"
    )


@contextmanager
def with_a_checkpoint(folder: Path, step: int) -> Iterator[RunDirectory]:
    """A run with a checkpoint of that step; its change to the SIGTERM handler is undone."""
    directory = RunDirectory(folder / "run")
    private = directory.trainer_private / f"checkpoint-{step}"
    private.mkdir(parents=True)
    (private / "model.safetensors").write_text("weights")
    publish(directory, step, {"counters": {}})
    handler = signal.getsignal(signal.SIGTERM)
    yield directory
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A run of four processes with a checkpoint of step 3."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    with with_a_checkpoint(tmp_path, step=3) as directory:
        yield directory


# As torch 2.13 words it.
CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.1.1]:29891"


def test_the_newest_checkpoint_is_named(run: RunDirectory) -> None:
    with pytest.raises(RunError) as caught, ranks_explained(run):
        raise RuntimeError(CLOSED)
    assert str(caught.value) == (
        "another of this run's 4 processes ended: it was killed, or its own output says why; --resume, with 4 "
        "processes again, continues from checkpoint-3, which is complete"
    )


def test_an_error_that_was_made_of_it_counts_too() -> None:
    try:
        try:
            raise torch.distributed.DistBackendError(CLOSED)
        except RuntimeError as error:
            raise ValueError("cannot gather") from error
    except ValueError as error:
        assert lost_a_rank(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at pair.cc:454] op.preamble.length <= op.nbytes. 8 vs 4"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ConnectionResetError("Connection reset by peer"),
        ServerError("the dataserver broke off its answer (Connection reset by peer)"),
    ],
)
def test_other_errors_pass_as_they_are(error: Exception, run: RunDirectory) -> None:
    with pytest.raises(type(error)) as caught, ranks_explained(run):
        raise error
    assert caught.value is error


def test_one_process_alone_has_nobody_to_lose(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(RuntimeError, match="closed by peer") as caught, ranks_explained(run):
        raise RuntimeError(CLOSED)
    assert not isinstance(caught.value, RunError)


def test_what_the_toolkit_told_already_stays_as_it_is(run: RunDirectory) -> None:
    told = RunError(json.dumps({"reason": CLOSED}))
    with pytest.raises(RunError) as caught, ranks_explained(run):
        raise told
    assert caught.value is told
