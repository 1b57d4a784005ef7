"""How long a program took by itself: what it computed and slept, and not what it waited for a busy processor."""

import math
import os
import subprocess
import time
from contextlib import suppress
from typing import NamedTuple

PATIENCE = 10.0
"""By the clock a program may take so many times its own time before it is given up."""

PROC = "/proc"

_SHORTEST_PAUSE = 0.01  # seconds


class TimeOverError(Exception):
    """The program took longer than it may."""


class StarvedError(Exception):
    """The machine is too busy to tell how long the program would take."""


class _Look(NamedTuple):
    own: float
    """Seconds since it began, without those in which it waited for a processor."""
    computed: int
    """Nanoseconds."""
    is_runnable: bool
    """Whether it runs, or waits for a processor right now."""


def wait_for(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Wait until a program ends by itself, and return its exit code.

    Raises:
        TimeOverError: it takes longer than so many seconds of its own.
        StarvedError: it has not had them after `PATIENCE` times as long.
    """
    end = time.monotonic() + PATIENCE * seconds
    left, computed = seconds, math.inf
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(max(min(left, end - time.monotonic()), _SHORTEST_PAUSE))
        look = _look(process.pid)
        left = seconds - look.own
        # The kernel counts a wait when it is over: of a program that has not run since the last look nothing is known.
        if left <= 0 and (look.computed > computed or not look.is_runnable):
            raise TimeOverError(f"ran longer than {seconds:g} s")
        if time.monotonic() > end:
            raise StarvedError(
                f"the machine is too busy: {look.own:.1f} s of its {seconds:g} s in {PATIENCE:g} times as long"
            )
        computed = look.computed


def _look(pid: int) -> _Look:
    """Nothing is known of a program that has just ended, nor where there is no such kernel: then its limit of processor
    time decides."""
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
    """The program itself, which bubblewrap starts through processes of its own."""
    while True:
        try:
            with open(f"{PROC}/{pid}/task/{pid}/children") as file:
                children = file.read().split()
        except OSError:
            return pid
        if not children:
            return pid
        pid = int(children[0])
