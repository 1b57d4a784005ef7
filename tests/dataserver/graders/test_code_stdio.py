"""Programs in answers: which one runs, which output counts as right, and tricks that earn nothing."""

import asyncio
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dataserver.sandboxes import SANDBOXES
from posttrain.dataserver.graders.base import Score
from posttrain.dataserver.graders.code_stdio import CodeStdio, last_program
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.pool import GradingPool
from posttrain.dataserver.grading.worker import Setup, Task
from posttrain.errors import DataError

if TYPE_CHECKING:
    from posttrain.dataserver.grading.rewards import Judgement

SUMS = [{"input": "1 2\n", "output": "3\n"}, {"input": "5 -7\n", "output": "-2\n"}]
ADD = "print(sum(map(int, input().split())))"


def fenced(program: str, mark: str = "python") -> str:
    return f"```{mark}\n{program}\n```"


def grade(answer: str, tests: Any = SUMS, **params: Any) -> Score:
    grader = CodeStdio(**{"seconds": 10.0, "sandbox": SANDBOXES[0], **params})
    given = grader.score(GradeInput(answer, answer, record={"tests": tests}))
    return given if isinstance(given, Score) else Score(given)


def test_a_right_program_passes() -> None:
    assert grade(f"I add them up.\n\n{fenced(ADD)}\n\nThat is all.") == Score(1.0)


def test_a_program_that_fails_one_test_gets_nothing_or_its_share() -> None:
    absolute = fenced("print(abs(sum(map(int, input().split()))))")

    assert grade(absolute) == Score(0.0, "test 2: wrong output")
    assert grade(absolute, fraction=True) == Score(0.5, "test 2: wrong output")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\n```python\nb\n```", "b"),
        ("```python\na\n```\nOutput:\n```\n3\n```", "a"),
        ("```python\na\n```\n```text\n3\n```", "a"),
        ("```\na\n```\n```\nb\n```", "b"),
        ("```Python3\na\n```", "a"),
        ("  ```py \na\n  ```  ", "a"),
        ("```python\r\na\r\n```\r\n", "a\r"),
        ("```python\na\n\n\nb\n```", "a\n\n\nb"),
        ("```python\na\n```python\nb\n```", "a\n```python\nb"),
        ("```python\na", None),
        ("```python\na\n```\n```python\nb", "a"),
        ("a", None),
        ("`a`", None),
        ("", None),
        ("```\n```", ""),
    ],
)
def test_the_last_program_is_run(text: str, program: str | None) -> None:
    assert last_program(text) == program


@pytest.mark.parametrize(
    ("printed", "wanted", "score"),
    [
        ("1 2\n", "1 2", 1.0),
        ("1 2", "1 2\n\n", 1.0),
        ("1  2 \n", " 1 2", 1.0),
        ("1\r\n2\r\n", "1\n2", 1.0),
        ("\n1", "1", 0.0),
        ("1\n2", "1 2", 0.0),
        ("12", "1 2", 0.0),
        ("1.0", "1", 0.0),
        ("", "1", 0.0),
        ("1\n1", "1", 0.0),
    ],
)
def test_white_space_counts_only_where_it_parts_words_and_lines(printed: str, wanted: str, score: float) -> None:
    assert grade(fenced(f"print({printed!r}, end='')"), [{"input": "", "output": wanted}]).value == score


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("", "wrong output"),
        ("import sys\nsys.exit(0)", "wrong output"),
        ("import os\nos._exit(0)", "wrong output"),
        ("raise SystemExit", "wrong output"),
        (f"{ADD}\nimport os, sys\nsys.stdout.flush()\nos._exit(1)", "exit code 1"),
        (f"{ADD}\n1 / 0", "ZeroDivisionError: division by zero"),
        ("while True: print(3)", "File too large"),
        ("import os\nwhile True: os.fork()", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
        ("import os\nos.kill(0, 9)", "PermissionError"),
        ("import posttrain", "ModuleNotFoundError: No module named 'posttrain'"),
        ("class Same(str):\n    __eq__ = lambda *_: True\nprint(Same('x'))", "wrong output"),
        ("print('\\n'.join(map(str, range(-9, 9))))", "wrong output"),
        ("print(open('tests.json').read())", "tests.json"),
        ("import gc\nprint([x for x in gc.get_objects() if '-2' in str(x)][:1])", "wrong output"),
    ],
)
def test_a_trick_wins_nothing(program: str, reason: str) -> None:
    score = grade(fenced(program), output_kb=10)

    assert score.value == 0.0
    assert reason in score.detail


def test_a_program_that_does_not_end_gets_nothing() -> None:
    assert grade(fenced("while True: pass"), seconds=0.2) == Score(0.0, "test 1: ran longer than 0.2 s")


def test_the_words_never_tell_what_was_wanted() -> None:
    assert "tell" not in grade(fenced("print(1)"), [{"input": "", "output": "do-not-tell"}]).detail


@pytest.mark.parametrize(
    "tests",
    [
        None,
        [],
        "3",
        {"input": "", "output": "3"},
        [{"input": ""}],
        [{"input": 1, "output": "3"}],
        [{"input": "", "output": 3}],
        [3],
        [{"input": "", "output": "  \n"}],
    ],
)
def test_a_row_without_tests_is_refused(tests: Any) -> None:
    item = GradeInput("", None, record={} if tests is None else {"tests": tests})

    with pytest.raises(DataError, match="'tests'"):
        CodeStdio().check_row(item)


def test_tests_can_stand_in_another_column() -> None:
    grader = CodeStdio(column="cases", sandbox=SANDBOXES[0])
    item = GradeInput(fenced(ADD), fenced(ADD), record={"cases": SUMS})
    grader.check_row(item)

    assert grader.score(item) == Score(1.0)


def test_an_answer_that_never_comes_gets_nothing() -> None:
    assert CodeStdio().score(GradeInput(fenced(ADD), None, record={"tests": SUMS})) == Score(0.0, "no answer")


def test_in_a_grading_process_the_deadline_ends_the_program_too() -> None:
    grader = CodeStdio(seconds=30.0, sandbox=SANDBOXES[0])
    pool = GradingPool(1, Setup({"code": grader}, seconds=1.0, memory_bytes=2**31), tasks_per_worker=10)
    found: dict[int, Judgement] = {}
    programs = [ADD, "import time\ntime.sleep(20)", "while True: pass", ADD]
    tasks = [Task(("code",), GradeInput(fenced(each), None, record={"tests": SUMS})) for each in programs]

    asyncio.run(pool.grade(tasks, lambda number, judged: found.__setitem__(number, judged["code"])))
    left = [process for process in psutil.process_iter(["cmdline"]) if programs[1] in (process.info["cmdline"] or [])]
    pool.close()

    assert [found[number].score for number in range(4)] == [1.0, None, None, 1.0]
    assert found[1].detail == "timeout"
    assert left == []


def test_running_code_has_to_be_allowed() -> None:
    assert CodeStdio.needs_code_execution
