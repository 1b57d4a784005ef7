"""The lock on a run's folder: one process at a time, however that process ends."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from posttrain.base.locks import HeldError, holder_of, process_lock
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory, clear_run_directory, own_run_directory

# Takes the lock, starts a child if asked to, prints a process id, and waits until its input ends.
HOLD = """
import os, subprocess, sys
from pathlib import Path
from posttrain.base.locks import process_lock
with process_lock(Path(sys.argv[1])):
    if sys.argv[2] == "fork" and os.fork() == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()
        sys.exit()
    if sys.argv[2] == "start":
        wait = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
        subprocess.Popen([sys.executable, "-c", wait])
    if sys.argv[2] == "alone":
        print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(path: Path, how: str = "alone") -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock, and the id printed: its own or, if it has a child, the child's."""
    command = [sys.executable, "-c", HOLD, str(path), how]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()  # also ends a child's input


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path / "runs" / "mine")


def test_a_second_process_is_refused_at_once_and_told_who_is_there(run: RunDirectory):
    before = datetime.now(UTC).replace(microsecond=0)
    with holding(run.lock) as (process, _):
        with pytest.raises(HeldError) as caught, process_lock(run.lock):
            pass
        holder = caught.value.holder
        assert (holder.pid, holder.host, holder.is_certain) == (process.pid, socket.gethostname(), True)
        assert before <= datetime.fromisoformat(holder.since) <= datetime.now(UTC)
        assert holder_of(run.lock) == holder


def test_a_killed_process_leaves_no_lock(run: RunDirectory):
    with holding(run.lock) as (process, _):
        process.kill()
        process.wait()
        assert run.lock.is_file()
        assert holder_of(run.lock) is None
        with process_lock(run.lock):
            assert json.loads(run.lock.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("how", ["fork", "start"])
def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(run: RunDirectory, how: str):
    with holding(run.lock, how) as (process, child):
        assert child != process.pid
        assert holder_of(run.lock) is not None
        process.kill()
        process.wait()
        os.kill(child, 0)  # it is alive
        with process_lock(run.lock):
            pass


def test_a_forked_child_that_ends_as_its_parent_would_leaves_the_lock_to_it(run: RunDirectory):
    lock = process_lock(run.lock)
    with lock:
        child = os.fork()
        if child == 0:
            try:
                lock.__exit__(None, None, None)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert run.lock.is_file()
        found = holder_of(run.lock)
        assert found is not None and found.pid == os.getpid()


def test_what_was_made_for_the_lock_goes_with_it_and_nothing_else(run: RunDirectory, tmp_path: Path):
    with process_lock(run.lock):
        pass
    assert list(tmp_path.iterdir()) == []
    with process_lock(run.lock):
        run.manifest.write_text("{}")
    assert [path.name for path in run.path.iterdir()] == ["manifest.json"]
    with process_lock(run.lock):
        run.manifest.unlink()
    assert run.path.is_dir()  # it existed before the lock


# Adds 1 to a number in a file a given number of times; without mutual exclusion, additions would be lost.
ADD = """
import sys
from pathlib import Path
from posttrain.base.locks import HeldError, process_lock
number, left = Path(sys.argv[1]), int(sys.argv[3])
while left:
    try:
        with process_lock(Path(sys.argv[2])):
            number.write_text(str(int(number.read_text()) + 1))
            left -= 1
    except HeldError:
        pass
"""


def test_no_two_processes_ever_have_the_lock_though_its_file_comes_and_goes(tmp_path: Path):
    number = tmp_path / "number"
    number.write_text("0")
    command = [sys.executable, "-c", ADD, str(number), str(tmp_path / "run" / ".lock"), "100"]
    processes = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in processes] == [0, 0, 0, 0]
    assert number.read_text() == "400"


def test_a_file_that_goes_between_its_opening_and_its_locking_is_not_the_lock(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
):
    real, gone = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if not gone:  # another process releases the lock
            run.lock.unlink()
            gone.append(True)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with process_lock(run.lock):
        assert gone
        found = holder_of(run.lock)
        assert found is not None and found.pid == os.getpid()


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_a_run_that_is_being_trained_is_refused_whatever_was_asked_for(run: RunDirectory, options: dict[str, bool]):
    run.path.mkdir(parents=True)
    run.manifest.write_text("{}")
    with holding(run.lock) as (process, _):
        with pytest.raises(ConfigError) as caught, own(run, **options):
            pass
        message = str(caught.value)
        assert message.startswith(f"{run.path} is being trained by process {process.pid} on {socket.gethostname()}, ")
        assert message.endswith("wait until it ends, stop it, or give this run its own name with --run-name")
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "manifest.json"]


def own(run: RunDirectory, resume: bool = False, overwrite: bool = False):
    return own_run_directory(run, resume=resume, overwrite=overwrite)


def test_clearing_the_folder_leaves_the_lock_in_force(run: RunDirectory):
    run.path.mkdir(parents=True)
    for name in ("manifest.json", "metrics.jsonl"):
        (run.path / name).write_text("{}")
    with own(run, overwrite=True):
        clear_run_directory(run)
        assert [path.name for path in run.path.iterdir()] == [".lock"]
        command = [sys.executable, "-c", HOLD, str(run.lock), "alone"]
        refused = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert f"HeldError: process {os.getpid()} on " in refused.stderr
    assert list(run.path.iterdir()) == []


def test_what_a_killed_run_left_of_its_lock_does_not_make_a_folder_a_run(run: RunDirectory):
    with holding(run.lock) as (process, _):
        process.kill()
        process.wait()
        with own(run):
            pass
    assert list(run.path.iterdir()) == []


def test_a_folder_that_is_no_run_is_left_as_it_is(run: RunDirectory):
    run.path.mkdir(parents=True)
    (run.path / "thesis.txt").write_text("years of work")
    changed = run.path.stat().st_mtime_ns
    with pytest.raises(ConfigError, match="not a run's folder"), own(run, overwrite=True):
        pass
    assert run.path.stat().st_mtime_ns == changed


def test_a_folder_that_cannot_be_made_is_told_in_a_sentence():
    # Not even root can create a folder there.
    run = RunDirectory(Path("/proc/no_run_here"))
    with pytest.raises(ConfigError, match=r"^/proc/no_run_here is not writable: .*; choose another run.output_dir"):
        own(run).__enter__()


def test_other_ranks_take_no_lock(run: RunDirectory, monkeypatch: pytest.MonkeyPatch):
    with own(run):
        monkeypatch.setenv("RANK", "1")
        with own(run):
            pass
        assert run.lock.is_file()


@pytest.fixture
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a file system without locks, since none can be mounted here."""

    def flock(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)


def leave(run: RunDirectory, pid: int, host: str) -> None:
    """Leave a lock file as a killed holder would."""
    run.path.mkdir(parents=True)
    run.lock.write_text(
        json.dumps({"pid": pid, "host": host, "since": "2026-01-02T03:04:05+00:00", "is_certain": True})
    )


def test_without_locks_a_process_that_is_there_keeps_others_out(
    run: RunDirectory, without_locks: None, capsys: pytest.CaptureFixture[str]
):
    leave(run, os.getppid(), socket.gethostname())
    with pytest.raises(
        ConfigError, match=rf"by process {os.getppid()} on .*; if that process is gone, remove .*\.lock$"
    ):
        own(run).__enter__()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    run.lock.unlink()
    run.path.rmdir()
    leave(run, ended.pid, socket.gethostname())
    with own(run):
        assert json.loads(run.lock.read_text())["pid"] == os.getpid()
        assert "has no locks" in " ".join(capsys.readouterr().err.split())


def test_without_locks_a_process_on_another_host_is_taken_for_alive(run: RunDirectory, without_locks: None):
    leave(run, 1, "elsewhere")
    with pytest.raises(ConfigError, match="by process 1 on elsewhere, since 2026-01-02T03:04:05"):
        own(run).__enter__()
    assert run.lock.is_file()


def test_an_interrupt_lets_go_of_the_lock(run: RunDirectory):
    with holding(run.lock) as (process, _):
        process.send_signal(signal.SIGINT)
        process.wait()
        assert not run.path.exists()
