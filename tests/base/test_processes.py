"""Work that forked processes share comes back in order, and they end with the process that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from posttrain.base.processes import usable_cores, worked_in_order
from posttrain.errors import DataError, RunError


def uneven(number: int) -> tuple[int, int]:
    time.sleep(0.01 * (number % 3))
    return number * number, os.getpid()


@pytest.mark.parametrize("processes", [0, 1, 2, 5])
def test_results_are_in_the_order_of_the_items(processes: int):
    results = list(worked_in_order(uneven, range(12), processes))

    assert [square for square, _ in results] == [number * number for number in range(12)]
    assert len({worker for _, worker in results}) == max(1, processes)
    assert (os.getpid() in {worker for _, worker in results}) == (processes == 0)


def test_more_processes_than_items_are_not_started():
    assert len({worker for _, worker in worked_in_order(uneven, range(2), 8)}) == 2
    assert list(worked_in_order(uneven, [], 8)) == []


def test_large_items_and_results_do_not_block_each_other():
    items = [bytes([number]) * 3_000_000 for number in range(6)]

    assert list(worked_in_order(lambda item: item[::-1], items, 2)) == items


def test_items_are_read_only_as_they_are_needed():
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    results = worked_in_order(uneven, items(), 2)
    assert [next(results)[0], next(results)[0], len(read)] == [0, 1, 4]
    results.close()


def refuse_seven(number: int) -> int:
    if number == 7:
        raise DataError("7 is refused")
    return number


@pytest.mark.parametrize("processes", [0, 3])
def test_an_error_is_raised_where_its_answer_would_have_been(processes: int):
    results = worked_in_order(refuse_seven, range(20), processes)

    assert [next(results) for _ in range(7)] == list(range(7))
    with pytest.raises(DataError, match="7 is refused"):
        next(results)


def test_a_killed_process_is_told():
    def die_at_three(number: int) -> int:
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    with pytest.raises(RunError, match="a helping process ended with code -9; if it was killed, memory may"):
        list(worked_in_order(die_at_three, range(10), 2))


WORK_ON = r"""
import os, sys, time
from posttrain.base.processes import worked_in_order

def work(number):
    os.write(1, f"{os.getpid()}\n".encode())
    time.sleep(0.05)
    return number

for _ in worked_in_order(work, iter(int, 1), 3):
    pass
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_helpers_end_when_their_process_does(how: signal.Signals):
    process = subprocess.Popen(
        [sys.executable, "-c", WORK_ON], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    helpers = {int(process.stdout.readline()) for _ in range(9)}
    process.send_signal(how)
    process.wait()
    process.stdout.read()  # ends when the last process that could write to it has ended

    assert len(helpers) == 3


def test_there_is_a_core():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
