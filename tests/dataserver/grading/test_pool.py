"""A grader that misbehaves on a completion costs only that completion its score."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from nasty_graders import Obedient
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.pool import GradingPool
from posttrain.dataserver.grading.rewards import Judgement
from posttrain.dataserver.grading.worker import RowCheck, Setup, Task

SECONDS = 0.4


@pytest.fixture(scope="module")
def pool() -> Iterator[GradingPool]:
    setup = Setup({"grader": Obedient()}, seconds=SECONDS, memory_bytes=4 * 2**30)
    pool = GradingPool(2, setup, tasks_per_worker=50)
    yield pool
    pool.close()


def task(completion: str) -> Task:
    return Task(("grader",), GradeInput(completion, None))


def judge(pool: GradingPool, completions: Sequence[str]) -> list[Judgement]:
    found: dict[int, Mapping[str, Judgement]] = {}

    def done(number: int, judgements: Mapping[str, Judgement]) -> None:
        assert number not in found, "a completion was judged twice"
        found[number] = judgements

    asyncio.run(pool.grade([task(completion) for completion in completions], done))
    return [found[number]["grader"] for number in range(len(completions))]


def test_judgements_come_back_for_their_own_completions(pool: GradingPool) -> None:
    completions = [f"completion {number}" for number in range(300)]

    assert [judgement.detail for judgement in judge(pool, completions)] == completions


@pytest.mark.parametrize(
    ("order", "status", "reason"),
    [
        ("raise", "error", "ValueError: told to raise"),
        ("abstain", "abstain", "told to abstain"),
        ("loop", "error", "timeout"),
        ("loop and swallow", "error", "timeout"),
        ("loop in C", "error", "timeout"),
        ("giant number", "error", "timeout"),
        ("stop the timer", "error", "timeout"),
        ("sum for ever", "error", "timeout"),
        ("fill memory", "error", "out of memory"),
        ("exit", "error", "SystemExit: 3"),
        ("exit hard", "error", "the grading process died (exit code 3)"),
        ("exit hard with 0", "error", "the grading process died (exit code 0)"),
        ("recurse", "error", "nested too deep"),
        ("nan", "error", "ValueError: the grader returned 'nan', not a number from 0 to 1"),
        ("infinity", "error", "ValueError: the grader returned 'inf', not a number from 0 to 1"),
        ("two", "error", "ValueError: the grader returned '2.0', not a number from 0 to 1"),
        ("true", "error", "ValueError: the grader returned 'True', not a number from 0 to 1"),
        ("text", "error", "ValueError: the grader returned '1.0', not a number from 0 to 1"),
        ("nothing", "error", "ValueError: the grader returned 'None', not a number from 0 to 1"),
        ("fork", "ok", ""),
        ("print", "ok", ""),
    ],
)
def test_a_grader_that_misbehaves_costs_its_own_completion_only(
    pool: GradingPool, order: str, status: str, reason: str
) -> None:
    first, bad, last = judge(pool, ["first", order, "last"])

    assert (first.status, first.detail, last.status, last.detail) == ("ok", "first", "ok", "last")
    assert (bad.status, bad.detail) == (status, reason)
    assert (bad.score is None) == (status != "ok")


def test_many_that_hang_hold_up_the_others_by_their_own_time_only(pool: GradingPool) -> None:
    begin = time.monotonic()

    judgements = judge(pool, ["fine", *["loop"] * 8, "fine"])

    assert [judgement.status for judgement in judgements] == ["ok", *["error"] * 8, "ok"]
    # Eight completions of 0.4 s each on two workers; the bound is generous, as the machine may be busy.
    assert time.monotonic() - begin < 2 * 8 * SECONDS


@pytest.mark.parametrize("order", ["loop in C", "stop the timer", "exit hard", "exit hard with 0"])
def test_what_ends_its_process_is_asked_once_and_holds_up_the_others_no_longer_than_that(
    pool: GradingPool, tmp_path: Path, order: str
) -> None:
    # Twenty completions go to two processes in chunks of five; the eighth shares its chunk with four others.
    completions = [f"note {tmp_path}/{number} fine" for number in range(20)]
    completions[7] = f"note {tmp_path}/7 {order}"
    begin = time.monotonic()

    judgements = judge(pool, completions)

    assert [number for number, judgement in enumerate(judgements) if judgement.status != "ok"] == [7]
    assert (tmp_path / "7").read_text().splitlines() == [order]
    # Its own 0.4 s, half a second of grace and a process start; generous, as the machine may be busy.
    assert time.monotonic() - begin < 5


def test_a_row_that_cannot_be_graded_is_named(pool: GradingPool) -> None:
    rows = [
        RowCheck(number, ("grader",), GradeInput("", None, gold=gold))
        for number, gold in enumerate(["good", "bad", "exit", "good"])
    ]

    faults = asyncio.run(pool.check_rows(rows))

    assert [(fault.row, fault.reason) for fault in faults] == [
        (1, "the gold is bad"),
        (2, "checking it failed: the grading process died (exit code 7)"),
    ]
