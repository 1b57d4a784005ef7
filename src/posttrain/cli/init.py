"""toolkit-init: write a first config from a data file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.cli import doorway

main = doorway.command_app()
_TASK = "What to train for, guessed from the columns unless given; or a pipeline by rewards."
_MODEL = "A folder, a .gguf file, a Hugging Face id, or the packaged model."
_DATA = "The file of training data."
_OUTPUT = "The config to write."
_YES = "Ask nothing, and take what is suggested."


@main.command()
def init(
    task: Annotated[Literal["sft", "dpo", "grpo", "pipeline"] | None, typer.Option(help=_TASK)] = None,
    model: Annotated[str | None, typer.Option(metavar="MODEL", help=_MODEL)] = None,
    data: Annotated[Path | None, typer.Option(metavar="FILE", help=_DATA)] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help=_OUTPUT)] = None,
    yes: Annotated[bool, typer.Option("--yes", help=_YES)] = False,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Read a file of data, and write a config for it that passes --dry-run."""
    from posttrain.init.init import Wishes
    from posttrain.init.init import init as write

    write(Wishes(task, model, data, output, yes, overwrite))
