"""Ctrl-C ends a command with exit code 130, SIGTERM with 143, even if what they interrupt raises another exception."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import typer

from posttrain.cli.doorway import clear_errors
from posttrain.errors import DataError, RunInterrupted

UNHANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@pytest.fixture(autouse=True)
def heeded() -> Iterator[None]:
    """Handle signals as in a terminal, even if the tests run in a shell's background, where it is ignored."""
    before = {number: signal.signal(number, handler) for number, handler in UNHANDLED.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def receive(number: int, *, turned_into: Exception) -> None:
    """Receive a signal in code that turns the KeyboardInterrupt into another exception, as some C code does."""
    try:
        os.kill(os.getpid(), number)
        threading.Event().wait(5)
    except KeyboardInterrupt:
        raise turned_into from None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("an array is too small"), None, "interrupted"),
        (DataError("a file cannot be read"), None, "interrupted: a file cannot be read"),
        (RunInterrupted("saved; go on with --resume", 143), 143, "saved; go on with --resume"),
    ],
)
def test_an_error_that_ctrl_c_was_turned_into_is_told_as_an_interrupt(
    number: signal.Signals, error: Exception, code: int | None, told: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(typer.Exit) as caught, clear_errors(False):
        receive(number, turned_into=error)
    assert (caught.value.exit_code, capsys.readouterr().err) == (code or 128 + number, f"{told}\n")


def test_sigterm_lets_a_command_close_what_it_opened_and_a_second_one_does_not_disturb_it():
    closed = []
    with pytest.raises(typer.Exit) as caught, clear_errors(False):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait(5)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            closed.append("weights in shared memory")
    assert (caught.value.exit_code, closed) == (143, ["weights in shared memory"])


def test_an_error_without_ctrl_c_stays_an_error(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(typer.Exit) as caught, clear_errors(False):
        raise ValueError("an array is too small")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().err == "error: ValueError: an array is too small (--debug shows where)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_handler_of_before_is_back_and_an_ignored_signal_stays_ignored(number: signal.Signals):
    with clear_errors(False):
        assert signal.getsignal(number) is not UNHANDLED[number]
    assert signal.getsignal(number) is UNHANDLED[number]
    with clear_errors(False):  # as a run that has lost another process, so that its end is not disturbed
        signal.signal(number, signal.SIG_IGN)
    assert signal.getsignal(number) is signal.SIG_IGN
    with clear_errors(False):
        assert signal.getsignal(number) is signal.SIG_IGN
        os.kill(os.getpid(), number)


def test_a_command_in_another_thread_leaves_the_handlers_alone():
    handlers = []

    def command() -> None:
        with clear_errors(False):
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=command)
    thread.start()
    thread.join()
    assert handlers == [signal.default_int_handler]
