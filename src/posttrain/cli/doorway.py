"""Options that commands share, and how an error becomes a message and an exit code."""

import gc
import inspect
import json
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from typer.core import TyperArgument, TyperCommand, TyperGroup

from posttrain.base.secrets import DiscreetHandler, without_secrets
from posttrain.base.text import on_one_line
from posttrain.base.user_code import error_in_words
from posttrain.cli.env_file import read_env_file
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
    Path | None, typer.Option(metavar="DIR", help="Folder that holds the runs, in the place of the config's.")
]
Output = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder for what is made, in the place of the config's.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint, exactly.")]
Reshard = Annotated[
    bool, typer.Option("--reshard", help="Resume with other processes than before: the same numbers but for rounding.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything, print the plan, start nothing.")]
Part = Annotated[
    str | None, typer.Option("--shard", metavar="K/N", help="Answer only the K-th of N shares, one for each machine.")
]
Join = Annotated[bool, typer.Option("--join", help="Join what all shards have answered, and answer nothing.")]
EnvFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Read environment variables, such as tokens, from this .env file.")
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


def schema_option(model: type[BaseModel]) -> Any:
    """`--schema`: print the JSON Schema of the config file, for editors and scripts."""

    def print_schema(wanted: bool) -> None:
        if wanted:
            from posttrain.config.schema import json_schema

            typer.echo(json_schema(model))
            raise typer.Exit

    help_ = "Print the config's JSON Schema."
    return typer.Option("--schema", callback=print_schema, is_eager=True, help=help_)


def overrides(set_: Sequence[str] | None, **paths: Path | None) -> list[str]:
    """`--set` options, with one more for each path that is given, named by its key with `__` for dots."""
    given = {name.replace("__", "."): path for name, path in paths.items() if path is not None}
    return [*(set_ or ()), *(f"{key}={json.dumps(str(path), ensure_ascii=False)}" for key, path in given.items())]


class PlainHelp:
    """Shows no Python types: switches take no value, and arguments are told by name; and not how completion comes."""

    hides_completion = True

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` too."""
        params = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if isinstance(each, TyperArgument):
                each.display_type = _no_type  # type: ignore[method-assign]
            elif each.is_flag and each.metavar is None:
                each.metavar = ""
            if each.name in ("install_completion", "show_completion"):
                each.hidden = self.hides_completion
        return params


def _no_type(ctx: Any) -> str:
    return ""


class _Command(PlainHelp, TyperCommand):
    pass


class _Group(PlainHelp, TyperGroup):
    pass


class _App(typer.Typer):
    """Gives each command the options that all have, and turns its errors into messages."""

    def command(self, *args: Any, **options: Any) -> Any:
        """Register a command; the function itself stays as it is."""
        register = super().command(*args, **{"cls": _Command, **options})

        def decorate(function: Callable[..., None]) -> Callable[..., None]:
            register(_with_shared_options(function))
            return function

        return decorate


def command_app() -> typer.Typer:
    """An app for one command, or for several with a callback."""
    return _App(cls=_Group, pretty_exceptions_enable=False)


def _with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--debug` and `--version`, and with `--env-file` if it reads a config."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = {"env_file": (EnvFile, None), "debug": (Debug, False), "version": (Version, False)}
    if "config" not in own:
        del shared["env_file"]
    parameters = list(own.values()) + [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in shared.items()
        if name not in own
    ]

    @wraps(command)
    def run(**given: Any) -> None:
        with clear_errors(given["debug"]):
            if given.get("env_file") is not None:
                read_env_file(given["env_file"])
            _share_the_cores()
            _collect_rarely()
            command(**{name: given[name] for name in own})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


@contextmanager
def clear_errors(debug: bool) -> Iterator[None]:
    """Turn an error into one short message.

    The exit code is 2 where the input was wrong, 1 where a run failed, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if not debug:
        # The datasets library logs the errors that it raises; what it says is in our message.
        os.environ.setdefault("DATASETS_VERBOSITY", "critical")
    handler = DiscreetHandler(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])
    with _noticed_signals() as came:
        try:
            yield
        except typer.Exit:
            raise
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


def _collect_rarely() -> None:
    """Look for cycles of unreachable objects after more new ones: with Python's 700, it takes a fifth of imports."""
    gc.set_threshold(50_000, *gc.get_threshold()[1:])


def _shown(message: str) -> str:
    """Line by line: what a name or a value holds is shown, and does not steer the terminal."""
    return "\n".join(on_one_line(line) for line in without_secrets(message).split("\n"))


def _say(text: str) -> None:
    with suppress(BrokenPipeError):  # the exit code still says it
        typer.echo(text, err=True)
