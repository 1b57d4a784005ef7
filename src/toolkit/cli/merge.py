"""toolkit-merge: fold an adapter into its base weights."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.doorway import (
    ConfigFile,
    Debug,
    DryRun,
    Overrides,
    Overwrite,
    RunName,
    Version,
    clear_errors,
    command_app,
)
from toolkit.core.extras import require_extra

main = command_app()


@main.command()
def merge(
    config: ConfigFile,
    checkpoint: Annotated[
        str | None, typer.Option(help="A step, or latest; the exported adapter unless given.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Folder of the merged model; <run>/merged unless given.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the base's unless given.")] = None,
    verify: Annotated[bool, typer.Option(help="Compare the merged model's logits with the adapter's.")] = True,
    set_: Overrides = None,
    run_name: RunName = None,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Fold the adapter of a training run into the base weights, tensor by tensor."""
    with clear_errors(debug):
        require_extra("train", "toolkit-merge")
        from toolkit.merge.run import merge as run_merge

        run_merge(
            config,
            run_name=run_name,
            checkpoint=checkpoint,
            output=output,
            dtype=dtype,
            verify=verify,
            overwrite=overwrite,
            overrides=set_ or (),
            dry_run=dry_run,
        )
