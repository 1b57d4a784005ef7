"""Options that all commands share, and how an error becomes a message and an exit code."""

import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from posttrain.base.secrets import DiscreetFormatter, without_secrets
from posttrain.base.text import on_one_line
from posttrain.base.user_code import error_in_words
from posttrain.errors import RunInterrupted, ToolkitError


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"posttrain-toolkit {version('posttrain-toolkit')}")
        raise typer.Exit


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file of the run.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a key, such as section.key, for this call. Repeatable."),
]
RunName = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the run; the config file's name unless given.")
]
ModelIndex = Annotated[
    int | None, typer.Option(metavar="N", help="Which of the config's several models is meant, counted from 0.")
]
OutputDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder that holds the runs, in the place of run.output_dir.")
]
# Without a metavar of its own the help would show <bool>, as if a switch took a value.
_SWITCH: dict[str, Any] = {"metavar": ""}
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint, exactly.", **_SWITCH)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.", **_SWITCH)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.", **_SWITCH)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", **_SWITCH)]
Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.", **_SWITCH)
]


def schema_option(model: type[BaseModel]) -> Any:
    """`--schema`: print the JSON Schema of the config file, for editors and scripts."""

    def print_schema(wanted: bool) -> None:
        if wanted:
            from posttrain.config.schema import json_schema

            typer.echo(json_schema(model))
            raise typer.Exit

    help_ = "Print the config's JSON Schema."
    return typer.Option("--schema", callback=print_schema, is_eager=True, help=help_, **_SWITCH)


def as_override(output_dir: Path | None) -> list[str]:
    """`--output-dir` as a `--set` option; none where it is not given."""
    return [] if output_dir is None else [f"run.output_dir={output_dir}"]


def command_app() -> typer.Typer:
    """An app of one command, with errors left to `clear_errors`."""
    return typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@contextmanager
def clear_errors(debug: bool) -> Iterator[None]:
    """Turn an error into one short message.

    The exit code is 2 where the input was wrong, 1 where a run failed, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if not debug:
        # The datasets library logs the errors that it raises; what it says is in our message.
        os.environ.setdefault("DATASETS_VERBOSITY", "critical")
    _share_the_cores()
    handler = _ToStderr()
    handler.setFormatter(DiscreetFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s")))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    with _noticed_signals() as came:
        try:
            yield
        except KeyboardInterrupt:
            _say("interrupted")
            raise typer.Exit(_exit_code(came)) from None
        except RunInterrupted as stopped:
            _say(_shown(str(stopped)))
            raise typer.Exit(stopped.exit_code) from None
        except Exception as error:  # noqa: BLE001  # whatever it is, a person is told in one line
            is_ours = isinstance(error, ToolkitError)
            if debug:
                _say(without_secrets(traceback.format_exc()).rstrip("\n"))
            if came:
                _say(_shown(f"interrupted: {error}" if is_ours else "interrupted"))
                raise typer.Exit(_exit_code(came)) from None
            message = str(error) if is_ours else error_in_words(error) + " (--debug shows where)" * (not debug)
            _say(_shown(f"error: {message}"))
            raise typer.Exit(error.exit_code if is_ours else 1) from None


class _ToStderr(logging.Handler):
    """Writes to what stderr is by then: a run copies it to its log, and a progress bar moves aside for it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        try:
            _say(self.format(record))
        except Exception:  # noqa: BLE001  # as all handlers do
            self.handleError(record)


@contextmanager
def _noticed_signals() -> Iterator[Sequence[int]]:
    """The signals that came, Ctrl-C or SIGTERM: code in C may turn their KeyboardInterrupt into an error of its own.

    Where they are ignored, as Ctrl-C is in a shell's background jobs, or handled by others, that stays so.
    """
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        # SIGTERM may come twice for one request, and then does not disturb what is being closed and removed.
        if number == signal.SIGINT or len(came) == 1:
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
        free = [number for number, handler in _UNHANDLED.items() if signal.getsignal(number) is handler]
        before = {number: signal.signal(number, interrupt) for number in free}
    try:
        yield came
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is interrupt:  # otherwise the command has set another for its end
                signal.signal(number, handler)


_UNHANDLED = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def _exit_code(came: Sequence[int]) -> int:
    """The exit code that a shell gives for a command ended by the first of these signals, Ctrl-C if there is none."""
    return 128 + (came[0] if came else signal.SIGINT)


def _share_the_cores() -> None:
    """Have torch's threads spin only briefly while they wait for each other, unless the user has said how they wait.

    By themselves they spin for so long that beside another busy process each waits for one that has no core, and a step
    takes many times as long. OpenMP reads this when torch is imported, so it comes first.
    """
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")):
        os.environ["GOMP_SPINCOUNT"] = "10000"  # of 300,000; none at all costs a tenth where nobody else computes


def _shown(message: str) -> str:
    """Line by line: what a name or a value holds is shown, and does not steer the terminal."""
    return "\n".join(on_one_line(line) for line in without_secrets(message).split("\n"))


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # the exit code still says it
        typer.echo(text, err=True)
