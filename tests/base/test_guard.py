"""A guarded command ends with the process that started it, and its output holds no secrets."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.base.guard import guarded

# Starts a child of its own, reports both ids, and waits.
_SERVER = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "600"])
print(os.getpid(), child.pid, flush=True)
child.wait()
"""

# Starts the guarded server and waits to be killed.
_PARENT = """
import subprocess, sys
from posttrain.base.guard import guarded
subprocess.Popen(guarded(sys.argv[1:]), start_new_session=True).wait()
"""


def started(command: list[str], **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]


def pids(process: "subprocess.Popen[str]") -> list[int]:
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def until_gone(wanted: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(map(lives, wanted)):
        assert time.monotonic() < deadline, "the command outlived what should have ended it"
        time.sleep(0.05)


def test_the_command_and_its_children_end_when_the_parent_is_killed() -> None:
    parent = started([sys.executable, "-c", _PARENT, sys.executable, "-c", _SERVER])
    server = pids(parent)
    assert len(server) == 2
    parent.kill()
    parent.wait()
    until_gone(server)


def test_a_signal_to_the_guard_ends_the_command_and_its_children() -> None:
    guard = started(guarded([sys.executable, "-c", _SERVER]), start_new_session=True)
    server = pids(guard)
    guard.terminate()
    assert guard.wait(20) == 128 + signal.SIGTERM
    until_gone(server)


def test_children_of_a_command_that_dies_are_ended() -> None:
    guard = started(guarded([sys.executable, "-c", _SERVER]), start_new_session=True)
    server = pids(guard)
    os.kill(server[0], signal.SIGKILL)
    assert guard.wait(20) == 128 + signal.SIGKILL
    until_gone(server)


def test_the_exit_code_is_the_commands(tmp_path: Path) -> None:
    guard = subprocess.run(guarded([sys.executable, "-c", "raise SystemExit(7)"]), start_new_session=True, timeout=20)
    assert guard.returncode == 7


def test_secrets_of_the_environment_are_removed_from_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "correct-horse-battery")
    command = guarded([sys.executable, "-c", "import os; print('key:', os.environ['SERVER_KEY'])"])
    guard = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=20)
    assert guard.stdout == "key: ***\n"
