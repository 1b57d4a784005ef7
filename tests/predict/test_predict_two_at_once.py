"""Two commands on one output: the second is refused at once, the first loses nothing, a killed one blocks nobody."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from predict_cases import QUESTIONS, Task

from running import BIN

BASE = ("--weights", "base")
# Enough answers to keep the first command running for seconds after its first one.
SAMPLED = {"temperature": 1.0, "n": 12, "max_new_tokens": 60}


@pytest.fixture
def asked(task: Task) -> Path:
    """The input file."""
    task.change("generation", **SAMPLED)
    return task.ask()


@contextmanager
def answering(task: Task, *arguments: str | Path, partial: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A toolkit-predict process that has written its first answer and is not done; it is killed at the end."""
    process = subprocess.Popen(
        [BIN / "toolkit-predict", task.config, *arguments, *BASE],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    partial = partial or task.partial
    try:
        while process.poll() is None and not (partial.is_file() and partial.read_bytes().count(b"\n") > 1):
            time.sleep(0.002)
        assert process.poll() is None, "the first command ended before there was a second one"
        yield process
    finally:
        process.kill()
        process.wait()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_second_command_is_refused_at_once_and_costs_the_first_no_answer(task: Task, asked: Path, run: Callable):
    run(task.config, asked, task.folder / "alone.jsonl", *BASE)
    lock = task.folder / ".out.jsonl.lock"
    with answering(task, asked, task.output) as first:
        since = json.loads(lock.read_text())["since"]
        for options in ([], ["--overwrite"], ["--dry-run"], ["--set", "generation.seed=1"]):
            result = run(task.config, asked, task.output, *BASE, *options, expect=2)
            assert result.stderr == (
                f"error: {task.output} is being written by process {first.pid} on {socket.gethostname()}, since "
                f"{since}; wait until it ends, stop it, or give this output another name\n"
            )
        assert first.poll() is None
        _, said = first.communicate(timeout=100)
        assert first.returncode == 0, said
    assert task.output.read_bytes() == (task.folder / "alone.jsonl").read_bytes()
    assert len(task.answers()) == 12 * len(QUESTIONS)
    assert names(task.folder) == ["alone.jsonl", "in.jsonl", "out.jsonl", "task.yaml"]


def test_a_killed_command_keeps_nobody_out_and_loses_no_answer(task: Task, asked: Path, run: Callable):
    with answering(task, asked, task.output) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        kept = task.partial.read_bytes()
        assert (task.folder / ".out.jsonl.lock").is_file()
        result = run(task.config, asked, task.output, *BASE)
    answers = kept.count(b"\n") - 1
    assert f"72: 12 per row, {answers} of them already in {task.partial}" in result.stderr
    assert len(task.answers()) == 72
    assert names(task.folder) == ["in.jsonl", "out.jsonl", "task.yaml"]


def test_a_folder_that_is_being_written_is_refused_and_another_one_is_not(task: Task, asked: Path, run: Callable):
    task.ask(QUESTIONS, "in/a.jsonl")
    output = task.folder / "out"
    with answering(task, task.folder / "in", output, partial=task.folder / "out.partial") as first:
        message = run(task.config, task.folder / "in", f"{output}/", *BASE, expect=2).stderr
        assert f"error: {output} is being written by process {first.pid} on " in message
        other = task.folder / "other"
        run(task.config, task.folder / "in", other, *BASE, "--set", "generation.n=1")
        assert first.poll() is None
    assert len(task.answers(other / "a.jsonl")) == len(QUESTIONS)


def test_a_command_that_is_refused_for_its_input_leaves_nothing(task: Task, run: Callable):
    input_ = task.ask(["{broken"])
    assert "in.jsonl:1: " in run(task.config, input_, task.folder / "new" / "out.jsonl", *BASE, expect=2).stderr
    assert names(task.folder) == ["in.jsonl", "task.yaml"]
    task.output.write_text("precious\n")
    run(task.config, task.ask(), task.output, *BASE, expect=2)
    assert names(task.folder) == ["in.jsonl", "out.jsonl", "task.yaml"]


def test_an_output_where_nothing_may_be_created_is_told_in_a_sentence(task: Task, run: Callable):
    # Nobody can create a file or folder there, not even root.
    for output in ("/proc/out.jsonl", "/proc/new/out.jsonl"):
        message = run(task.config, task.ask(), output, *BASE, expect=2).stderr
        assert message.startswith(f"error: {output} cannot be written: ")
        assert len(message.splitlines()) == 1
