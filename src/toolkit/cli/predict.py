"""toolkit-predict: answer the prompts of a file or folder."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.doorway import (
    ConfigFile, Debug, DryRun, Overrides, Overwrite, RunName, Version, clear_errors, command_app,
)
from toolkit.core.config.load import load_config
from toolkit.core.extras import require_extra
from toolkit.sft.config import SFTConfig

main = command_app()
_WEIGHTS = "merged, adapter, or base (the model before training); auto takes merged where it is there."


@main.command()
def predict(
    config: ConfigFile,
    input_: Annotated[Path, typer.Argument(metavar="INPUT", help="A .jsonl file, or a folder of them.")],
    output: Annotated[Path, typer.Argument(help="The .jsonl file (or folder) to write.")],
    weights: Annotated[str, typer.Option(help=_WEIGHTS)] = "auto",
    checkpoint: Annotated[str | None, typer.Option(help="A step, or latest: that checkpoint's adapter.")] = None,
    skip_bad_records: Annotated[bool, typer.Option(help="Leave bad rows out instead of stopping.")] = False,
    set_: Overrides = None,
    run_name: RunName = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Answer every prompt of INPUT; a killed run goes on where it was when it is started again."""
    with clear_errors(debug):
        ...
