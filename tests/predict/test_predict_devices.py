"""Two devices, a process each, write what one writes: also killed in the middle, or with one process killed."""

import os
import signal
from collections.abc import Callable

import psutil
import pytest
from predict_cases import Task
from test_predict_resume import prompts, stop_after

from posttrain.inference.answering.shards import Shard
from serve.serve_cases import until

SAMPLED = {"temperature": 1.0, "n": 3, "max_new_tokens": 60, "logprobs": True}
TWO = ("--weights", "base", "--set", "generation.devices=[cpu, cpu]")


@pytest.fixture
def of_one(task: Task, run: Callable) -> bytes:
    """What one device writes: three answers to each of 40 prompts, 4 at once."""
    task.change("generation", **SAMPLED)
    run(task.config, task.ask(prompts(40)), task.folder / "one.jsonl", "--weights", "base")
    return (task.folder / "one.jsonl").read_bytes()


def workers(pid: int) -> list[psutil.Process]:
    children = psutil.Process(pid).children()
    return [each for each in children if "posttrain.inference.process.worker" in each.cmdline()]


def test_a_killed_command_leaves_no_process_and_goes_on_with_the_same_bytes(task: Task, run: Callable, of_one: bytes):
    input_ = task.folder / "in.jsonl"
    process = stop_after(17, signal.SIGSTOP, task, input_, task.output, *TWO[2:])
    both = workers(process.pid)
    process.kill()
    process.wait()
    assert len(both) == 2
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in both))
    there = task.partial.read_bytes().count(b"\n") - 1
    assert 17 <= there < 120
    run(task.config, input_, task.output, *TWO)
    assert task.output.read_bytes() == of_one


def test_a_command_one_of_whose_processes_is_killed_ends_with_the_same_bytes(task: Task, run: Callable, of_one: bytes):
    input_ = task.folder / "in.jsonl"
    process = stop_after(17, signal.SIGCONT, task, input_, task.output, *TWO[2:])  # it just goes on
    os.kill(workers(process.pid)[0].pid, signal.SIGKILL)
    _, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    assert task.output.read_bytes() == of_one
    assert len({(line["row"], line["sample"]) for line in task.answers()}) == len(task.answers()) == 120


def test_a_shard_may_be_answered_by_two_devices(task: Task, run: Callable, of_one: bytes):
    input_ = task.folder / "in.jsonl"
    run(task.config, input_, task.output, *TWO, "--shard", "1/2")
    assert Shard(1, 2).file_of(task.output).is_file()
    run(task.config, input_, task.output, "--weights", "base", "--shard", "2/2")
    run(task.config, input_, task.output, "--weights", "base", "--join")
    assert task.output.read_bytes() == of_one
