"""Grader `code_stdio`: check that the answer's program prints the expected output for the row's tests."""

import re
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from posttrain.dataserver.graders.base import Example, Score, TextGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.sandbox import Kind, Limits, require_sandbox, run_program
from posttrain.errors import DataError

_FENCE = re.compile(r" {0,3}```([^`]*)")
_PYTHON = {"python", "python3", "py"}

_DOUBLE = {"tests": [{"input": "3", "output": "6"}, {"input": "-1", "output": "-2"}]}


class StdioTest(NamedTuple):
    """The input of a program and the output that it must print."""

    given: str
    wanted: str


class CodeStdio(TextGrader):
    """1 if the answer's Python program passes every test of the row: it reads the input and prints the output; else 0.

    The program is the last fenced block marked as Python, or else the last fenced block. It has the standard library,
    but neither threads nor processes. It must exit with code 0; line endings, white space at the ends of lines and
    extra spaces between words are ignored. It sees one input at a time and never an expected output.

    The time limit counts only the program's own time: what it computes and sleeps, not counting waits for a busy
    machine. A program that has not had its time after ten times as long is an error, without a score.
    `limits.grader_seconds` is wall-clock time, and what it ends is an error too: give it more than the tests need if
    other work shares the processors.

    It runs code written by a model, so the config must set `allow_code_execution: true`; it needs Linux or macOS. In
    `bubblewrap` the program has no network and sees no files except the interpreter and the system's libraries, and no
    other processes: only the kernel is left to attack. If bubblewrap does not work, the server does not start.
    `sandbox: rlimits` does without it, and the server warns about that: limits stop loops and floods, and the program
    cannot send a signal to any other process (on Linux, x86-64 or ARM), but it can use the network, read every file
    that its user can read (including the golds), and write where its user can write. That user is a separate one if the
    server runs as root; otherwise it is the server's own, and the program can then change the server's memory. Run the
    programs of models that you do not trust on a separate machine.

    A program killed from outside, such as by the system when memory runs out, is run once more; if it is killed again,
    that is an error without a score.
    """

    type: Literal["code_stdio"] = "code_stdio"

    column: str = Field(default="tests", min_length=1)
    """Column with the tests: a list of `{input, output}`, both text."""

    fraction: bool = False
    """Whether the score is the share of tests that pass; a program that prints known outputs then earns part of it."""

    seconds: float = Field(default=1.0, gt=0, le=60)
    """Time for one test: what the program computes and sleeps, not counting waits for a busy processor. All tests of a
    row together must fit into `limits.grader_seconds`, which is checked at the start."""

    memory_mb: int = Field(default=512, ge=64)
    """Maximum address space of the program, in MiB."""

    output_kb: int = Field(default=1024, ge=1)
    """Maximum output per test, in KiB."""

    sandbox: Kind = "bubblewrap"
    """What the program runs in. `bubblewrap` (the program `bwrap`) isolates it from the network, files and other
    processes; `rlimits` only limits its resources, and is no protection against a hostile program."""

    needs_code_execution: ClassVar[bool] = True
    is_correctness: ClassVar[bool] = True
    examples: ClassVar[tuple[Example, ...]] = (
        Example("```python\nprint(2 * int(input()))\n```", 1.0, record=_DOUBLE),
        Example("```python\nprint(6)\n```", 0.0, record=_DOUBLE, note="passes one of two tests"),
        Example("```python\nprint(6)\n```", 0.5, record=_DOUBLE, params={"fraction": True}),
        Example("print(2 * int(input()))", 0.0, record=_DOUBLE, note="no fenced block"),
        Example("", 0.0, record=_DOUBLE),
    )

    def load(self) -> None:
        """Try the sandbox; ConfigError if it does not work."""
        require_sandbox(self.sandbox)

    def notice(self) -> str:
        """Name the sandbox that the programs run in; ConfigError if it does not work."""
        require_sandbox(self.sandbox)
        if self.sandbox == "bubblewrap":
            return "model-written programs run in bubblewrap"
        return (
            "warning: model-written programs run with resource limits only (sandbox: rlimits), and with access to "
            "the network and to all files that their user can read"
        )

    def check_row(self, item: GradeInput) -> None:
        """Raise DataError unless the row has tests and at least one of them expects some output."""
        if not any(test.wanted.strip() for test in self._tests(item)):
            raise DataError(f"no test in the column {self.column!r} expects any output")

    def seconds_at_most(self, item: GradeInput) -> float:
        """The time limit of all tests together."""
        tests = item.record.get(self.column)
        return self.seconds * len(tests) if isinstance(tests, list) else 0.0

    def score_text(self, text: str, item: GradeInput) -> Score | float:
        """The share of tests that pass (with `fraction`), or 1 if all pass and else 0."""
        program = last_program(text)
        if program is None:
            return Score(0.0, "no fenced block with a program")
        tests, passed, fault = self._tests(item), 0, ""
        for number, test in enumerate(tests, start=1):
            reason = self._fault(program, test)
            passed += reason is None
            if reason is not None:
                fault = fault or f"test {number}: {reason}"
                if not self.fraction:
                    return Score(0.0, fault)
        return Score(passed / len(tests), fault)

    def _fault(self, program: str, test: StdioTest) -> str | None:
        """Why a test fails, without revealing the expected output; None if it passes."""
        limits = Limits(self.seconds, self.memory_mb, self.output_kb * 1024)
        run = run_program(program, test.given, limits, self.sandbox)
        # Both are errors in grading this completion and say nothing about the program.
        if run.status == "starved":
            raise TimeoutError(run.detail)
        if run.status == "killed":
            raise RuntimeError(f"the program was {run.detail}")
        if run.status != "ok":
            return run.detail
        return None if _normal(run.output) == _normal(test.wanted) else "wrong output"

    def _tests(self, item: GradeInput) -> list[StdioTest]:
        tests = item.record.get(self.column)
        if not isinstance(tests, list) or not tests:
            raise DataError(f"the column {self.column!r} must contain a list of tests, {{input, output}} each")
        return [self._test(test) for test in tests]

    def _test(self, test: Any) -> StdioTest:
        match test:
            case {"input": str(given), "output": str(wanted)}:
                return StdioTest(given, wanted)
        raise DataError(f"a test in the column {self.column!r} must be {{input, output}}, both strings: {test!r}"[:200])


def last_program(text: str) -> str | None:
    """The last closed fenced block, or the last one marked as Python if there is any; None without a closed block."""
    blocks: list[tuple[str, str]] = []
    mark: str | None = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            lines.append(line)
        elif mark is None:
            mark, lines = fence[1].strip().lower(), []
        elif fence[1].strip():
            lines.append(line)  # only a bare fence closes a block
        else:
            blocks.append((mark, "\n".join(lines)))
            mark = None
    marked = [program for mark, program in blocks if mark in _PYTHON]
    return (marked or [program for _, program in blocks] or [None])[-1]


def _normal(output: str) -> list[str]:
    lines = [" ".join(line.split()) for line in output.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines
