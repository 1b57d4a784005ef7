"""A sandboxed program gets its input, stays within its limits and harms nobody, in every sandbox that works here."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from dataserver.sandboxes import SANDBOXES
from dataserver.serving import still_running, until
from posttrain.dataserver.graders.code_stdio import CodeStdio
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.pool import GradingPool
from posttrain.dataserver.grading.rewards import Judgement
from posttrain.dataserver.grading.sandbox import Kind, Limits, Run, require_sandbox, run_program
from posttrain.dataserver.grading.worker import Setup, Task
from posttrain.errors import ConfigError

LIMITS = Limits(seconds=5.0, memory_mb=256, output_bytes=10_000)

# Runs a program that kills its parent, then prints whether the parent survived.
_ATTACK = """
import sys
from posttrain.dataserver.grading.sandbox import Limits, run_program
run = run_program("import os\\nos.kill(os.getppid(), 9)\\nprint('alive')", "", Limits(seconds=2.0), sys.argv[1])
print("parent alive", run.status)
"""


kinds = pytest.mark.parametrize("kind", SANDBOXES)


def test_there_is_a_sandbox_here() -> None:
    assert "rlimits" in SANDBOXES


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
        ("import posttrain", "ModuleNotFoundError: No module named 'posttrain'"),
        ("print(1)\0", "NUL"),
        ("print('\ud800')", "not valid Unicode"),
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
    # As on a machine with a slow clock: the program's own limit of 1 s of CPU time is reached first.
    program = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 6))\nprint(1, flush=True)\nwhile True: pass"

    assert run(program, kind) == Run("timeout", "1\n", "exceeded its time limit")


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
    """Runs in a separate process: with neither bubblewrap nor root, the attack may succeed and kill it."""
    attacked = subprocess.run([sys.executable, "-c", _ATTACK, kind], capture_output=True, text=True, timeout=60)

    survived = "parent alive failed" in attacked.stdout or "parent alive ok" in attacked.stdout
    assert survived or attacked.returncode == -9
    if kind == "bubblewrap" or os.geteuid() == 0:
        assert survived


def test_in_bubblewrap_there_are_no_files_no_network_and_no_other_process() -> None:
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

    if "bubblewrap" in SANDBOXES:
        assert run(program, "bubblewrap").output.splitlines() == lines
    else:
        with pytest.raises(ConfigError, match="bubblewrap does not work here"):
            require_sandbox("bubblewrap")


def test_without_bubblewrap_nothing_else_is_taken_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    require_sandbox.cache_clear()

    with pytest.raises(ConfigError, match=r"install the package bubblewrap.*sandbox: rlimits"):
        CodeStdio().load()
    CodeStdio(sandbox="rlimits").load()
    require_sandbox.cache_clear()


_REACHES = """
import ctypes, os, signal
calls = ctypes.CDLL(None, use_errno=True)
def tried(name, result):
    print(name, "works" if result >= 0 else "fails")
try:
    os.kill(os.getppid(), 0)
    print("signal works")
except PermissionError:
    print("signal fails")
x86 = os.uname().machine == "x86_64"
tried("key", calls.syscall(248 if x86 else 217, b"user", b"name", b"value", 5, -4))
tried("shared memory", calls.shmget(4711, 4096, 0o1666))
tried("namespace", calls.unshare(0x10000000))
tried("memory of others", calls.syscall(310 if x86 else 270, os.getppid(), None, 0, None, 0, 0))
tried("the second set", calls.syscall(0x40000000 | 39) if x86 else -1)
"""


@kinds
def test_calls_that_reach_others_or_stay_behind_are_refused(kind: Kind) -> None:
    lines = [f"{name} fails" for name in ("signal", "key", "shared memory", "namespace", "memory of others")]

    assert run(_REACHES, kind).output.splitlines() == [*lines, "the second set fails"]


def grade(programs: list[str], workers: int, output: str, seconds: float = 20.0) -> list[Judgement]:
    """Judge programs that should print `output`, with resource limits alone and that many workers."""
    graders = {"code": CodeStdio(sandbox="rlimits", seconds=seconds / 2)}
    row = {"tests": [{"input": "", "output": output}]}
    tasks = [Task(("code",), GradeInput(f"```python\n{each}\n```", None, record=row)) for each in programs]
    found: dict[int, Judgement] = {}
    with closing(GradingPool(workers, Setup(graders, seconds=seconds, memory_bytes=2**31), 100)) as pool:
        asyncio.run(pool.grade(tasks, lambda number, judged: found.__setitem__(number, judged["code"])))
    return [found[number] for number in range(len(programs))]


def test_a_program_cannot_end_those_of_other_completions() -> None:
    mark = f"honest-{uuid.uuid4().hex}"
    honest = f"import time\ntime.sleep(0.3)\nprint('done')  # {mark}"
    killer = f"""
import os, time
for _ in range(15):
    time.sleep(0.05)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if {mark[:10]!r} + {mark[10:]!r} in open(f"/proc/{{pid}}/cmdline").read():
                os.kill(int(pid), 9)
        except OSError:
            pass
print('done')
"""
    judged = grade([honest, killer] * 4, workers=2, output="done")

    assert [(each.status, each.score) for each in judged[::2]] == [("ok", 1.0)] * 4


def end_programs(mark: str, times: int) -> threading.Thread:
    """Kill `times` programs that contain this mark, one after another, from another thread."""

    def end() -> None:
        deadline = time.monotonic() + 30
        for _ in range(times):
            while time.monotonic() < deadline:
                found = [each for each in psutil.process_iter(["cmdline"]) if mark in str(each.info["cmdline"])]
                if found:
                    found[0].kill()
                    psutil.wait_procs(found, 5)
                    break
                time.sleep(0.01)

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("times", "outcome"), [(1, ("ok", 1.0)), (2, ("error", None))])
def test_a_program_that_somebody_else_ends_is_repeated_once_and_is_never_a_score(
    times: int, outcome: tuple[str, float | None]
) -> None:
    mark = f"victim-{uuid.uuid4().hex}"
    ending = end_programs(mark, times)

    (judged,) = grade([f"import time\ntime.sleep(1)\nprint('done')  # {mark}"], workers=1, output="done")

    ending.join()
    assert (judged.status, judged.score) == outcome
    assert ("killed" in judged.detail) == (times == 2)


def test_the_programs_of_two_processes_have_two_users_where_they_are_started_by_root() -> None:
    told = [each.detail for each in grade(["import os, time\ntime.sleep(0.5)\nraise OSError(os.getuid())"] * 2, 2, "1")]
    users = {each.removeprefix("test 1: OSError: ") for each in told}

    if os.geteuid() == 0:
        assert len(users) == 2 and not users & {"0", "65534"}, told
    else:
        assert users == {str(os.geteuid())}


@kinds
def test_what_a_program_leaves_is_removed(kind: Kind) -> None:
    name = f"left-{uuid.uuid4().hex}"
    folders = ["/tmp", "/dev/shm", "/var/tmp"] if os.geteuid() == 0 else []
    program = f"""
import os, tempfile
for folder in {folders!r}:
    try:
        open(f"{{folder}}/{name}", "w").write("x")
        os.makedirs(f"{{folder}}/{name}-folder/{name}")
    except OSError:
        pass
try:
    open(os.path.join(tempfile.mkdtemp(), {name!r}), "w").write("x")
    for _ in range(1100):
        os.mkdir({name[:6]!r})
        os.chdir({name[:6]!r})
except OSError:
    pass
print("done")
"""
    before = set(Path("/tmp").glob("sandbox-*"))

    assert run(program, kind).output == "done\n"
    assert not [path for folder in ("/tmp", "/dev/shm", "/var/tmp") for path in Path(folder).glob(f"{name}*")]
    assert set(Path("/tmp").glob("sandbox-*")) <= before


def test_a_program_ends_with_the_process_that_started_it() -> None:
    mark = f"orphan-{uuid.uuid4().hex}"
    program = f"import os, time\nopen(os.environ['TMPDIR'] + '/{mark}', 'w')\ntime.sleep(60)"
    imported = "import sys\nfrom posttrain.dataserver.grading.sandbox import *"
    start = f"{imported}\nrun_program(sys.argv[1], '', Limits(50), 'rlimits')"
    starter = subprocess.Popen([sys.executable, "-c", start, program])
    until(lambda: bool(list(Path(tempfile.gettempdir()).glob(f"sandbox-*/{mark}"))))
    (folder,) = (each.parent for each in Path(tempfile.gettempdir()).glob(f"sandbox-*/{mark}"))
    (running,) = [each for each in psutil.Process(starter.pid).children() if program in each.cmdline()]

    starter.send_signal(signal.SIGKILL)
    starter.wait()

    assert still_running([running], 20) == []
    shutil.rmtree(folder)
