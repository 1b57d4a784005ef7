"""toolkit-merge: fold an adapter into its base weights."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway

main = doorway.command_app()
_OUTPUT = "Folder of the merged model; <run>/merged unless given."
_DTYPE = "float32, bfloat16 or float16; the base's unless given."


@main.command()
def merge(
    config: doorway.ConfigFile,
    checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="A checkpoint's step, or latest.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="DIR", help=_OUTPUT)] = None,
    dtype: Annotated[str | None, typer.Option(metavar="NAME", help=_DTYPE)] = None,
    verify: Annotated[bool, typer.Option(help="Compare the merged model's logits with the adapter's.")] = True,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
) -> None:
    """Fold the adapter of a training run into the base weights, tensor by tensor."""
    require_extra("train", "toolkit-merge")
    from posttrain.merge.merge import merge as run_merge

    overrides = doorway.overrides(set_, run__output_dir=output_dir)
    where = {
        "checkpoint": checkpoint,
        "output": output,
        "run_name": run_name,
        "overrides": overrides,
    }
    run_merge(
        config, **where, model_index=model_index, dtype=dtype, verify=verify, overwrite=overwrite, dry_run=dry_run
    )
