"""toolkit: all commands under one name, with completion for the shell."""

import ast
import sys
from importlib.metadata import EntryPoint, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from posttrain.cli import doorway

_PREFIX = "toolkit-"
SCRIPTS = {
    each.name.removeprefix(_PREFIX): each
    for each in distribution("posttrain-toolkit").entry_points.select(group="console_scripts")
    if each.name.startswith(_PREFIX)
}
"""The commands that the installed package declares, by their names without the prefix."""


class _Commands(doorway.PlainHelp, TyperGroup):
    """Lists all commands without importing any; the one that is called takes the place of its entry in the list."""

    hides_completion = False

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Its name, the command itself, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        if name not in SCRIPTS:  # only to complete what is typed
            return name, command, rest
        if not ctx.resilient_parsing:
            sys.argv = [f"{_PREFIX}{name}", *rest]  # as under its own name: some commands start themselves again
        return name, typer.main.get_command(SCRIPTS[name].load()), rest


def _told(script: EntryPoint) -> str:
    """What a command does: the first line of its file, which is read and not run."""
    spec = find_spec(script.module)
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) if spec and spec.origin else ""
    return (text or "").partition("\n")[0].partition(": ")[2]


main = typer.Typer(cls=_Commands, pretty_exceptions_enable=False, no_args_is_help=True)
for _name, _script in sorted(SCRIPTS.items()):
    main.command(_name, help=_told(_script))(lambda: None)


@main.callback(help="Fine-tune, align and measure chat models. `toolkit COMMAND` is the same as `toolkit-COMMAND`.")
def toolkit(version: doorway.Version = False) -> None:
    """Only what all of them share."""
