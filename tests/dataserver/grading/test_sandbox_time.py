"""A program is judged by the time it takes itself, not by how busy the machine is."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from posttrain.dataserver.graders.base import Score, checked_score
from posttrain.dataserver.graders.code_stdio import CodeStdio
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading import sandbox
from posttrain.dataserver.grading.sandbox import Limits, run_program

HALF_A_SECOND = "import time\nwhile time.process_time() < 0.5: pass\nprint('done')"
FOR_EVER = "while True: pass"


@pytest.fixture
def busy_processor() -> Iterator[None]:
    """One CPU for this process and its children, shared with three busy loops."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own)})
    others = [subprocess.Popen([sys.executable, "-c", FOR_EVER]) for _ in range(3)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, own)


def grade(program: str) -> Score:
    answer = f"```python\n{program}\n```"
    item = GradeInput(answer, answer, record={"tests": [{"input": "", "output": "done"}]})
    return checked_score(CodeStdio(seconds=1.0, sandbox="rlimits").score(item))


@pytest.mark.usefixtures("busy_processor")
def test_a_program_that_waits_for_its_processor_is_given_its_time() -> None:
    # It takes more than a second of wall time, as it gets half of the CPU at best.
    run = run_program(HALF_A_SECOND, "", Limits(seconds=1.0), "rlimits")

    assert (run.status, run.output) == ("ok", "done\n")


@pytest.mark.usefixtures("busy_processor")
def test_nor_is_more_given_to_one_that_does_not_end() -> None:
    assert run_program(FOR_EVER, "", Limits(seconds=0.5), "rlimits").status == "timeout"


@pytest.mark.parametrize(
    "program",
    [
        "import time\ntime.sleep(60)",
        "import time\nwhile True: time.sleep(0.05)",
        "import time\ntime.sleep(0.3)\nwhile True: pass",
    ],
)
def test_sleeping_is_time_of_its_own(program: str) -> None:
    assert run_program(program, "", Limits(seconds=0.5), "rlimits").status == "timeout"


@pytest.mark.usefixtures("busy_processor")
def test_a_program_that_hardly_runs_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PATIENCE", 1.2)  # it gets half of this at best

    with pytest.raises(TimeoutError, match="too busy"):
        grade(FOR_EVER)


def test_without_the_kernels_word_the_limit_of_the_processor_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "PROC", "/nowhere")

    assert grade(HALF_A_SECOND).value == 1.0
    assert grade(FOR_EVER).value == 0.0
