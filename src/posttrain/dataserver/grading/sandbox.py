"""Run a model-written Python program in a sandbox.

With bubblewrap the program has no network, and sees no files but the interpreter and the system's libraries, and no
other processes: only the kernel is left to attack. Without it, resource limits alone are NOT a security boundary: they
stop endless loops and floods of output or processes, but the program can open network connections, read every file that
its user can read, and write wherever its user can write. If the server runs as root, that user is a separate one;
otherwise it is the server's own, and the program can also read and change the memory of the server's processes. Run
programs of models that you do not trust on a separate machine.

On Linux, with or without bubblewrap, a filter refuses system calls that reach other processes or leave something
behind (`sandbox_isolation`).

A program's time is what it spent computing and sleeping, without what it waited for a busy processor.
"""

import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal, NamedTuple

from posttrain.dataserver.grading.sandbox_isolation import call_filter, own_user, remove, remove_left
from posttrain.errors import ConfigError

Kind = Literal["bubblewrap", "rlimits"]

PATIENCE = 10.0
"""A program is given up after this many times its time limit by the clock."""

PROC = "/proc"

_SHORTEST_PAUSE = 0.01  # seconds

_NOBODY = 65534  # the user that the program sees in bubblewrap if the server is not root
_LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
# The kernel limits a single argument to 128 KiB.
_LONGEST_PROGRAM_BYTES = 120_000
_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")


@dataclass(frozen=True)
class Limits:
    """How much one run may use."""

    seconds: float
    """Without the time that it waits for a processor."""
    memory_mb: int = 512
    """Address space, in MiB."""
    output_bytes: int = 2**20
    """Limits standard output, and the size of any file."""


class Run(NamedTuple):
    """The outcome of a run."""

    status: Literal["ok", "failed", "timeout", "starved", "killed"]
    """ok: it ended by itself with exit code 0. starved: the machine was too busy to give it its time. killed: somebody
    else killed it, and killed it again when it was repeated."""
    output: str
    detail: str


def run_program(program: str, stdin: str, limits: Limits, kind: Kind) -> Run:
    """Run a program with `stdin` as its standard input; it leaves no processes and no files behind.

    Only one thread of a process may call this at a time: all programs of a process run as the same user.
    """
    try:
        if len(program.encode()) > _LONGEST_PROGRAM_BYTES or "\0" in program:
            return Run("failed", "", f"the program contains NUL characters or more than {_LONGEST_PROGRAM_BYTES} bytes")
    except UnicodeEncodeError:
        return Run("failed", "", "the program is not valid Unicode")
    run = _run_once(program, stdin, limits, kind)
    # Somebody else killed it: the system, e.g. because memory ran out, or a person.
    return _run_once(program, stdin, limits, kind) if run.status == "killed" else run


def _run_once(program: str, stdin: str, limits: Limits, kind: Kind) -> Run:
    with _folder() as folder, _file(stdin.encode("utf-8", "replace")) as given, _file() as output, _file() as errors:
        process = subprocess.Popen(
            _command(program, limits, kind),
            stdin=given,
            stdout=output,
            stderr=errors,
            cwd=folder,
            env={"TMPDIR": folder} if kind == "rlimits" else {},
            start_new_session=True,
        )
        try:
            ended = _wait(process, limits.seconds)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if isinstance(ended, Run):
            return ended
        return _result(ended, _text(output, limits.output_bytes), _text(errors, 10_000))


@cache
def require_sandbox(kind: Kind) -> None:
    """Try a sandbox on a small program, once per process.

    Raises:
        ConfigError: it does not work on this machine.
    """
    reason = _fault(kind)
    if reason is not None:
        advice = ""
        if kind == "bubblewrap":
            advice = "; sandbox: rlimits works without it, but does not protect against a hostile program"
        raise ConfigError(f"sandbox: {kind} does not work here: {reason}{advice}")


def _fault(kind: Kind) -> str | None:
    if os.name != "posix":
        return "only on Linux and macOS"
    if kind == "bubblewrap" and _bwrap() is None:
        return "the program bwrap is missing; install the package bubblewrap"
    run = run_program("import json\nprint(json.loads(input()) + 1)", "41", Limits(seconds=10.0), kind)
    return None if run.output.strip() == "42" else f"a test program failed: {run.detail or run.output}"[:300]


def _command(program: str, limits: Limits, kind: Kind) -> list[str]:
    interpreter = os.path.realpath(sys.executable)
    numbers = {
        "RLIMIT_CPU": math.ceil(limits.seconds),
        "RLIMIT_AS": limits.memory_mb * 2**20,
        "RLIMIT_FSIZE": limits.output_bytes,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,  # only root is exempt from it
    }
    return [
        *(_bubblewrap(interpreter) if kind == "bubblewrap" else ()),
        *(interpreter, "-I", "-S", "-B", "-X", "utf8", "-c", _LAUNCHER.read_text(encoding="utf-8")),
        str(math.ceil(PATIENCE * limits.seconds) + 1),
        str(own_user() or ""),
        " ".join(f"{name}={number}" for name, number in numbers.items()),
        call_filter().hex(),
        program,
    ]


def _bwrap() -> str | None:
    # As a full path: a bare name would be looked up by the program's environment, which is empty.
    return shutil.which("bwrap")


def _bubblewrap(interpreter: str) -> Sequence[str]:
    folders = dict.fromkeys((*_SYSTEM_FOLDERS, sys.base_prefix, sys.base_exec_prefix, os.path.dirname(interpreter)))
    binds = [word for folder in folders for word in ("--ro-bind-try", folder, folder)]
    # Root needs no user namespace, and keeps the right to become another user, to whom the limits apply.
    user = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
    return (
        *(_bwrap() or "bwrap", "--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc"),
        *("--unshare-uts", "--unshare-cgroup-try"),
        *(user if os.geteuid() == 0 else ("--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY))),
        *binds,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--dir", "/empty", "--chdir", "/empty"),
        *("--remount-ro", "/", "--"),
    )


@contextmanager
def _folder() -> Iterator[str]:
    """A folder for one program, removed afterwards along with everything else that its user left."""
    folder, user = tempfile.mkdtemp(prefix="sandbox-"), own_user()
    if user is not None:
        os.chown(folder, user, user)
    try:
        yield folder
    finally:
        remove(folder)
        if user is not None:
            remove_left(user)


def _file(content: bytes = b"") -> IO[bytes]:
    """An unnamed file, deleted when it is closed."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    if (user := own_user()) is not None:
        os.fchown(file.fileno(), user, user)  # so that /dev/stdin can be opened
    file.write(content)
    file.seek(0)
    return file


def _text(file: IO[bytes], size: int) -> str:
    file.seek(0)
    return file.read(size).decode("utf-8", "replace")


def _result(code: int, output: str, errors: str) -> Run:
    last = errors.strip().splitlines()[-1][:300] if errors.strip() else ""
    ended_by = -code if code < 0 else code - 128  # bubblewrap exits with 128 + n after signal n, as shells do
    if ended_by in (signal.SIGXCPU, signal.SIGALRM):
        return Run("timeout", output, "exceeded its time limit")
    # bubblewrap's 137 does not count as killed: a program can exit with that code itself.
    if code == -signal.SIGKILL:
        return Run("killed", "", "killed from outside")
    if code:
        return Run("failed", output, last or f"exit code {code}")
    return Run("ok", output, last)


class _Look(NamedTuple):
    own: float
    """Seconds since it began, without those that it waited for a processor."""
    computed: int
    """Nanoseconds on a processor."""
    is_runnable: bool
    """Whether it is running or waiting for a processor."""


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> int | Run:
    """The exit code of a program that ends by itself; else the outcome of its run: a timeout if it uses up `seconds`
    of its own time, starved if it does not get them within `PATIENCE` times as long."""
    end = time.monotonic() + PATIENCE * seconds
    left, computed = seconds, math.inf
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(max(min(left, end - time.monotonic()), _SHORTEST_PAUSE))
        look = _look(process.pid)
        left = seconds - look.own
        # The kernel counts a wait only once it is over: a program that has not run since the last look may be waiting.
        if left <= 0 and (look.computed > computed or not look.is_runnable):
            return Run("timeout", "", f"ran longer than {seconds:g} s")
        if time.monotonic() > end:
            had = f"{look.own:.1f} s of its {seconds:g} s within {PATIENCE * seconds:g} s"
            return Run("starved", "", f"the machine is too busy: the program got {had}")
        computed = look.computed


def _look(pid: int) -> _Look:
    """How much time a program has had. Unknown if it has just ended or the kernel does not report it; then its limit of
    processor time decides."""
    pid = _innermost(pid)
    try:
        with open(f"{PROC}/{pid}/schedstat") as times, open(f"{PROC}/{pid}/stat") as stat:
            computed, waited = map(int, times.read().split()[:2])
            fields = stat.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return _Look(0.0, 0, is_runnable=True)
    begin = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - begin
    return _Look(age - waited / 1e9, computed, is_runnable=fields[0] == "R")


def _innermost(pid: int) -> int:
    """The pid of the program itself, which bubblewrap starts through processes of its own."""
    while True:
        try:
            with open(f"{PROC}/{pid}/task/{pid}/children") as file:
                children = file.read().split()
        except OSError:
            return pid
        if not children:
            return pid
        pid = int(children[0])
