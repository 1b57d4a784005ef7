"""A grader that obeys the completion, for tests that a misbehaving grader cannot harm anything else."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import Literal

from posttrain.dataserver.graders.base import Abstain, Grader, Score
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.errors import DataError


class Obedient(Grader):
    """Scores 1, unless told otherwise."""

    type: Literal["obedient"] = "obedient"

    def check_row(self, item: GradeInput) -> None:
        if item.gold == "bad":
            raise DataError("the gold is bad")
        if item.gold == "exit":
            os._exit(7)

    def score(self, item: GradeInput) -> Score | float:
        order = item.completion
        if order.startswith("note "):
            _, path, order = order.split(" ", 2)
            with open(path, "a") as file:
                file.write(f"{order}\n")
        if order in _ORDERS:
            return _ORDERS[order]()
        if order == "raise":
            raise ValueError("told to raise")
        if order == "abstain":
            raise Abstain("told to abstain")
        return Score(1.0, order)


def _loop() -> float:
    while True:
        pass


def _loop_and_swallow() -> float:
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(10)


def _loop_in_c() -> float:
    # Blocks all Python signal handlers, as arithmetic on giant integers does.
    ctypes.PyDLL(None).sleep(60)
    return 1.0


def _stop_the_timer() -> float:
    signal.setitimer(signal.ITIMER_REAL, 0)
    return _loop()


def _fork() -> float:
    child = os.fork()
    if child == 0:
        return 0.0
    os.waitpid(child, 0)
    return 1.0


def _print() -> float:
    print("printed by a grader" * 100)  # noqa: T201
    sys.stdout.flush()
    os.write(1, b"written by a grader\n")
    return 1.0


def _fill_memory() -> float:
    return float(len(bytearray(64 * 2**30)))


def _exit() -> float:
    sys.exit(3)


def _exit_hard() -> float:
    os._exit(3)


def _recurse() -> float:
    return _recurse()


_ORDERS = {
    "loop": _loop,
    "loop and swallow": _loop_and_swallow,
    "loop in C": _loop_in_c,
    "stop the timer": _stop_the_timer,
    "sum for ever": lambda: float(sum(range(10**13))),
    "exit hard with 0": lambda: os._exit(0),
    "giant number": lambda: float(len(str(9**9**9))),
    "fork": _fork,
    "print": _print,
    "fill memory": _fill_memory,
    "exit": _exit,
    "exit hard": _exit_hard,
    "recurse": _recurse,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "two": lambda: 2.0,
    "true": lambda: True,
    "text": lambda: "1.0",
    "nothing": lambda: None,
}
