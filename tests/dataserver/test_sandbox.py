"""A program in the sandbox gets its input, keeps to its limits, and harms nobody: in each sandbox that works here."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from toolkit.dataserver.sandbox import Kind, Limits, Run, find_sandbox, run_program
from toolkit.errors import ConfigError

LIMITS = Limits(seconds=5.0, memory_mb=256, output_bytes=10_000)

# Ends the process that started it, and then does what it is told.
_ATTACK = """
import sys
from toolkit.dataserver.sandbox import Limits, run_program
run = run_program("import os\\nos.kill(os.getppid(), 9)\\nprint('alive')", "", Limits(seconds=2.0), sys.argv[1])
print("parent alive", run.status)
"""


def working_kinds() -> list[Kind]:
    kinds: list[Kind] = []
    for kind in ("bubblewrap", "rlimits"):
        with suppress(ConfigError):
            kinds.append(find_sandbox(kind))
    return kinds


KINDS = working_kinds()
kinds = pytest.mark.parametrize("kind", KINDS)


def test_there_is_a_sandbox_here() -> None:
    assert find_sandbox("auto") == KINDS[0]
    assert "rlimits" in KINDS


def run(program: str, kind: Kind, stdin: str = "", limits: Limits = LIMITS) -> Run:
    begin = time.monotonic()
    result = run_program(program, stdin, limits, kind)
    assert time.monotonic() - begin < limits.seconds + 5.0
    return result


@kinds
def test_a_program_reads_its_input_and_prints(kind: Kind) -> None:
    assert run("print(int(input()) * 2)", kind, "21\n") == Run("ok", "42\n", "")


@kinds
@pytest.mark.parametrize("read", ["sys.stdin.read()", "open(0).read()", "open('/dev/stdin').read()"])
def test_input_can_be_read_in_every_usual_way(kind: Kind, read: str) -> None:
    assert run(f"import sys\nprint({read}, end='')", kind, "a\nö\n").output == "a\nö\n"


@kinds
def test_the_standard_library_can_be_imported(kind: Kind) -> None:
    program = """
import bisect, collections, collections.abc, dataclasses, decimal, fractions, functools, hashlib, heapq, itertools
import json, math, random, re, statistics, string, sys, typing
from __main__ import sys as same

@dataclasses.dataclass
class Point:
    x: "int"

print(Point(1), "ä".encode("latin-1"), __name__, sys.argv)
"""
    assert run(program, kind) == Run("ok", "Point(x=1) b'\\xe4' __main__ ['program.py']\n", "")


@kinds
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print(1)\n1 / 0", "ZeroDivisionError: division by zero"),
        ("print(1)\nimport sys\nsys.exit(3)", "exit code 3"),
        ("print(1)\nimport os\nos._exit(1)", "exit code 1"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("import toolkit", "ModuleNotFoundError: No module named 'toolkit'"),
        ("print(1)\0", "NUL"),
        ("print('\ud800')", "no valid Unicode"),
        ("#" * 200_000, "more than 120000 bytes"),
    ],
)
def test_a_program_that_fails_says_why(kind: Kind, program: str, words: str) -> None:
    result = run(program, kind)

    assert result.status == "failed"
    assert words in result.detail


@kinds
def test_leaving_early_is_no_failure_but_prints_no_more(kind: Kind) -> None:
    assert run("import sys\nsys.exit(0)\nprint(1)", kind) == Run("ok", "", "")
    assert run("import os\nos._exit(0)\nprint(1)", kind) == Run("ok", "", "")


@kinds
@pytest.mark.parametrize(
    "program",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nsignal.alarm(0)\nwhile True: pass",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
    ],
)
def test_a_program_that_does_not_end_is_ended(kind: Kind, program: str) -> None:
    before = set(psutil.Process().children(recursive=True))

    result = run(program, kind, limits=Limits(seconds=0.3))

    assert result.status == "timeout"
    assert set(psutil.Process().children(recursive=True)) <= before


@kinds
def test_the_time_of_the_processor_is_limited_too(kind: Kind) -> None:
    program = "import os\nprint(1, flush=True)\nos.kill(os.getpid(), 24)"

    assert run(program, kind) == Run("timeout", "1\n", "used up its time")


@kinds
def test_processes_cannot_be_started(kind: Kind) -> None:
    program = """
import os, subprocess, threading
for start in (os.fork, lambda: subprocess.run(["/bin/true"]), threading.Thread(target=print).start):
    try:
        start()
        print("started")
    except (OSError, RuntimeError) as error:
        print(type(error).__name__)
"""
    assert run(program, kind).output == "BlockingIOError\nBlockingIOError\nRuntimeError\n"


@kinds
@pytest.mark.parametrize(
    "program", ["print('x' * 10**6)", "while True: print('x' * 1000)", "open(1, 'w').write('x' * 10**6)"]
)
def test_a_flood_of_output_is_cut(kind: Kind, program: str) -> None:
    result = run(program, kind)

    assert result.status == "failed"
    assert len(result.output) <= LIMITS.output_bytes


@kinds
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("x = bytearray(10**9)", "MemoryError"),
        ("import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9, 9))", "not allowed to raise"),
        ("files = [open('/dev/null') for _ in range(100)]", "Too many open files"),
    ],
)
def test_limits_hold_and_cannot_be_raised(kind: Kind, program: str, words: str) -> None:
    assert words in run(program, kind).detail


@kinds
def test_environment_arguments_and_open_files_tell_nothing(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "canary-6f1d9b")
    program = """
import os
canary = "-".join(["canary", "6f1d9b"])
print(canary in str(dict(os.environ)), canary in open("/proc/self/cmdline").read())
print(len(os.listdir("/proc/self/fd")))
"""
    first, second = run(program, kind, stdin="canary-6f1d9b").output.splitlines()

    assert first == "False False"
    assert int(second) <= 9, "no open file of this process is handed on"


@kinds
def test_a_program_that_kills_its_parent_wins_nothing(kind: Kind) -> None:
    """Done in a process apart: without bubblewrap, and not as root, the attack succeeds, and ends that process."""
    attacked = subprocess.run([sys.executable, "-c", _ATTACK, kind], capture_output=True, text=True, timeout=60)

    survived = "parent alive failed" in attacked.stdout or "parent alive ok" in attacked.stdout
    assert survived or attacked.returncode == -9
    if kind == "bubblewrap" or os.geteuid() == 0:
        assert survived


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind == "bubblewrap"] or ["none"])
def test_in_bubblewrap_there_are_no_files_no_network_and_no_other_process(kind: Kind) -> None:
    program = f"""
import os, socket
def tried(name, action):
    try:
        action()
        print(name, "works")
    except OSError:
        print(name, "fails")
tried("read", lambda: open({__file__!r}))
tried("home", lambda: os.listdir(os.path.expanduser("~")) or open("/nowhere"))
tried("write", lambda: open("x", "w"))
tried("write to memory", lambda: open("/dev/shm/x", "w"))
tried("network", lambda: socket.create_connection(("127.0.0.1", 9)))
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit())[-1] < 10)
"""
    lines = ["read fails", "home fails", "write fails", "write to memory fails", "network fails", "True"]

    if kind == "bubblewrap":
        assert run(program, kind).output.splitlines() == lines
    else:
        with pytest.raises(ConfigError, match="bwrap"):
            find_sandbox("bubblewrap")


def test_a_sandbox_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    find_sandbox.cache_clear()

    with pytest.raises(ConfigError, match="install the package bubblewrap"):
        find_sandbox("bubblewrap")
    assert find_sandbox("auto") == "rlimits"
    find_sandbox.cache_clear()
