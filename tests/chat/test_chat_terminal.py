"""A chat on a terminal: the real command under a pseudo-terminal, with Ctrl-C, line editing and two columns."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_SECONDS = 90
_COMMAND = "from posttrain.cli.chat import main; main()"


class Terminal:
    """The command on a terminal of 100 columns."""

    def __init__(self, config: Path, *options: str) -> None:
        self._ours, theirs = pty.openpty()
        command: list[str | Path] = [
            sys.executable,
            "-c",
            "from posttrain.cli.chat import main; main()",
            config,
            "--weights",
            "base",
        ]
        environment = {**os.environ, "COLUMNS": "100", "LINES": "40", "TERM": "xterm", "OMP_NUM_THREADS": "1"}
        files: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        self.process = subprocess.Popen(
            [*command, *options], **files, env=environment, cwd=config.parent, process_group=0
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, pattern: str) -> str:
        """What has come up to the pattern since the last call."""
        deadline = time.monotonic() + _SECONDS
        while not (found := re.search(pattern, self.seen, re.DOTALL)):
            assert time.monotonic() < deadline, self.seen
            if select.select([self._ours], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._ours, 65536).decode(errors="replace")
                except OSError as error:
                    raise AssertionError(f"it ended: {self.seen}") from error
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def end(self) -> int:
        self.type("/quit\n")
        code = self.process.wait(_SECONDS)
        os.close(self._ours)
        return code


@pytest.fixture
def open_terminal(config: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_(*options: str) -> Terminal:
        opened.append(Terminal(config, *options))
        opened[-1].until("lists the commands.*> ")
        return opened[-1]

    yield open_
    for each in opened:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_ctrl_c_stops_the_answer_and_then_drops_a_line_but_not_the_program(open_terminal: Callable[..., Terminal]):
    terminal = open_terminal("--set", "generation.max_new_tokens=480")
    terminal.type("one two\n")
    terminal.until("one two\r\n.")
    terminal.process.send_signal(signal.SIGINT)
    assert "(stopped)" in terminal.until("> $")
    terminal.type("half a li")
    terminal.until("half a li")
    time.sleep(0.5)  # readline does not notice a signal that comes while it reads a letter
    terminal.process.send_signal(signal.SIGINT)
    terminal.until("> $")
    terminal.type("/undo\n")
    assert "took back: one two" in terminal.until("took back: .*> $")
    terminal.type("/sett\n")
    assert "did you mean /set?" in terminal.until("error: .*> $")
    assert terminal.end() == 0


def test_the_last_question_can_be_edited_and_ctrl_d_ends_the_chat(open_terminal: Callable[..., Terminal]):
    terminal = open_terminal("--set", "generation.max_new_tokens=2")
    terminal.type("one tw\n")
    terminal.until("cut at.*> $")
    terminal.type("/edit\n")
    terminal.until("one tw$")
    terminal.type("o\n")
    terminal.until("cut at.*> $")
    terminal.type("/undo\n")
    terminal.until("took back: one two.*> $")
    terminal.type("\x04")
    assert terminal.process.wait(_SECONDS) == 0


def test_two_models_answer_in_two_columns(open_terminal: Callable[..., Terminal], config: Path):
    terminal = open_terminal("--against", str(config), "--against-weights", "base")
    terminal.type("one two\n")
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.until("cut at.*cut at.*> $"))
    assert re.search(r"\[1\] task base +\[2\] task base", shown)
    assert terminal.end() == 0
