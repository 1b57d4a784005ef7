"""Ctrl-C ends a command with exit code 130, even if the interrupted code raises another exception."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import typer

from posttrain.cli.doorway import clear_errors
from posttrain.errors import DataError, RunInterrupted


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Handle Ctrl-C as in a terminal, even if the tests run in a shell's background, where it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_ctrl_c(*, turned_into: Exception) -> None:
    """Press Ctrl-C in code that turns the KeyboardInterrupt into another exception, as some C code does."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)
    except KeyboardInterrupt:
        raise turned_into from None


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("an array is too small"), 130, "interrupted"),
        (DataError("a file cannot be read"), 130, "interrupted: a file cannot be read"),
        (RunInterrupted("saved; go on with --resume", 143), 143, "saved; go on with --resume"),
    ],
)
def test_an_error_that_ctrl_c_was_turned_into_is_told_as_an_interrupt(
    error: Exception, code: int, told: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(typer.Exit) as caught, clear_errors(False):
        press_ctrl_c(turned_into=error)
    assert (caught.value.exit_code, capsys.readouterr().err) == (code, f"{told}\n")


def test_an_error_without_ctrl_c_stays_an_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit) as caught, clear_errors(False):
        raise ValueError("an array is too small")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == "error: ValueError: an array is too small (--debug shows where)\n"


def test_the_handler_of_before_is_back_and_an_ignored_ctrl_c_stays_ignored():
    with clear_errors(False):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with clear_errors(False):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        os.kill(os.getpid(), signal.SIGINT)


def test_a_command_in_another_thread_leaves_the_handlers_alone():
    handlers = []

    def command() -> None:
        with clear_errors(False):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
