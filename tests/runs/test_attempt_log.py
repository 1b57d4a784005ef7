"""The log of an attempt holds what the terminal shows, with times, and never fails a run."""

import io
import logging
import re
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.progress import Progress

from posttrain.base.console import _PatientConsole, console, new_table
from posttrain.errors import ConfigError, RunError, RunInterrupted
from posttrain.runs.attempt_log import AttemptLog, begin_attempt, recorded
from posttrain.runs.directory import RunDirectory


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def lines(run: RunDirectory, number: int = 1) -> list[str]:
    """The lines of an attempt's log, each of which must begin with a time, without it."""
    found = (run.logs / f"attempt-{number}.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in found), found
    return [line[21:] for line in found]


def test_what_is_shown_before_and_after_the_beginning_is_kept(run: RunDirectory) -> None:
    with recorded():
        console.print("reading data")
        assert not run.logs.exists()
        begin_attempt(run)
        console.print("step 1\n\nstep 2")
    console.print("after the end")
    assert lines(run) == ["reading data", "step 1", "step 2"]


def test_tables_and_lines_of_libraries_are_kept_without_colours(run: RunDirectory) -> None:
    with recorded():
        begin_attempt(run)
        table = new_table("Models", "model", "steps")
        table.add_row("one", "1,000")
        console.print(table, soft_wrap=False)
        handler = logging.StreamHandler()  # as a library makes one when it is imported
        handler.emit(logging.makeLogRecord({"msg": "\x1b[31mread\x1b[0m it"}))
        sys.stderr.write("in two ")
        sys.stderr.write("parts\n")
    found = lines(run)
    assert [line.split() for line in found[:2]] == [["Models"], ["model", "steps"]]
    assert found[3].split() == ["one", "1,000"]
    assert found[-2:] == ["read it", "in two parts"]


def test_progress_bars_are_left_out(run: RunDirectory) -> None:
    terminal = _PatientConsole(file=io.StringIO(), force_terminal=True, width=80)
    log = AttemptLog()
    log.begin(run.logs)
    terminal.listener = log.add
    with Progress(console=terminal) as bar:
        task = bar.add_task("training", total=2)
        for step in (1, 2):
            bar.update(task, completed=step)
            bar.refresh()
            terminal.print(f"step {step}")
        terminal.print_without_bar("a line instead of the bar")
    assert "━" in terminal.file.getvalue() and "instead" not in terminal.file.getvalue()  # type: ignore[attr-defined]
    with recorded():
        begin_attempt(RunDirectory(run.path))
        for done in (1, 2):
            sys.stderr.write(f"\rloading {done}/2")
        sys.stderr.write("\nloaded\r\n")
    log.close()
    assert lines(run) == ["step 1", "step 2", "a line instead of the bar"]
    assert lines(run, 2) == ["loaded"]


def test_secrets_are_removed_and_control_characters_are_written_out(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf-nobody-sees-this")
    with recorded():
        begin_attempt(run)
        console.print("with hf-nobody-sees-this at https://me:word@host/")
        sys.stderr.write("hf-nobody-sees-this\x07\n")
    assert lines(run) == ["with *** at https://***@host/", r"***\x07"]


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (RunError("loss is nan\nlower the rate"), ["error: loss is nan", "lower the rate"]),
        (RunInterrupted("stopped after step 3", 130), ["stopped after step 3"]),
        (KeyboardInterrupt(), ["interrupted"]),
        (ZeroDivisionError("of nobody's"), ["ZeroDivisionError: of nobody's"]),
    ],
)
def test_the_last_line_is_the_final_error(run: RunDirectory, error: BaseException, last: list[str]) -> None:
    with pytest.raises(type(error)), recorded():
        begin_attempt(run)
        raise error
    assert lines(run)[-len(last) :] == last
    assert ("Traceback" in lines(run)[0]) == isinstance(error, ZeroDivisionError)


def test_an_attempt_that_is_refused_leaves_nothing(run: RunDirectory) -> None:
    with pytest.raises(ConfigError), recorded():
        console.print("reading data")
        raise ConfigError("no")
    assert list(run.path.iterdir()) == []


def test_each_attempt_has_the_next_number(run: RunDirectory) -> None:
    run.logs.mkdir()
    for name in ("attempt-1.log", "attempt-9.log", "attempt-x.log", "notes.txt"):
        (run.logs / name).write_text(name)
    for number in (10, 11):
        with recorded():
            begin_attempt(run)
            console.print(f"this is {number}")
    assert lines(run, 10) == ["this is 10"] and lines(run, 11) == ["this is 11"]
    assert (run.logs / "attempt-9.log").read_text() == "attempt-9.log"


def test_nothing_is_kept_where_nothing_is_recorded(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_attempt(run)
    monkeypatch.setenv("RANK", "1")
    with recorded():
        begin_attempt(run)
        sys.stderr.write("from another rank\n")
    assert list(run.path.iterdir()) == []


def test_stderr_is_given_back_and_what_has_kept_it_still_writes(run: RunDirectory, capsys) -> None:
    before = sys.stderr
    with recorded():
        kept = sys.stderr
        assert (kept.encoding, kept.isatty(), kept.errors) == (before.encoding, before.isatty(), before.errors)
        begin_attempt(run)
    assert sys.stderr is before
    kept.write("late\n")
    assert capsys.readouterr().err == "late\n"
    assert lines(run) == []


@pytest.fixture
def small_files() -> Iterator[int]:
    """Files can have 200 bytes, until the test allows more with this limit."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_lines_that_cannot_be_written_are_counted_and_no_error(run: RunDirectory, small_files: int, capsys) -> None:
    with recorded():
        begin_attempt(run)
        for step in range(1, 11):
            console.print(f"step {step}: {'x' * 40}")  # 71 bytes with the time: two fit, the third is cut
        resource.setrlimit(resource.RLIMIT_FSIZE, (small_files, small_files))
        console.print("there is room again")
    text = (run.logs / "attempt-1.log").read_text()
    # Eight steps, and the warning itself.
    assert "\n(9 lines could not be written)\n" in text and "step 2" in text and "step 4" not in text
    assert text.endswith("there is room again\n")
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("step")]
    assert told == [
        "warning: the log of this attempt is incomplete: File too large; training goes on",
        "there is room again",
    ]


def test_a_folder_that_cannot_be_made_is_told_and_no_error(run: RunDirectory, capsys) -> None:
    run.logs.write_text("a file")
    with recorded():
        begin_attempt(run)
        console.print("step 1")
    assert "the log of this attempt is incomplete: File exists" in capsys.readouterr().err
    assert run.logs.read_text() == "a file"
