"""toolkit-push: send what was trained to a Hugging Face hub."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway

main = doorway.command_app()
_WEIGHTS = "What was trained, the merged model, or the GGUF files of toolkit-export."
_EVALUATION = "Output of toolkit-eval whose scores of these weights go on the card. Repeatable."
_LICENSE = "The base's licence, such as apache-2.0, if its files do not name it."
_BASE = "Hugging Face id of the base, if model.name is none."
_PUBLIC = "Everybody may see the repository; it is private otherwise."


@main.command()
def push(
    config: doorway.ConfigFile,
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The repository.", show_default=False)],
    weights: Annotated[Literal["adapter", "merged", "gguf"], typer.Option(help=_WEIGHTS)] = "adapter",
    public: Annotated[bool, typer.Option("--public", help=_PUBLIC)] = False,
    revision: Annotated[str, typer.Option(metavar="BRANCH", help="Where to; made if it does not exist.")] = "main",
    checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="A checkpoint's step, or latest.")] = None,
    base: Annotated[str | None, typer.Option(metavar="ID", help=_BASE)] = None,
    license_: Annotated[str | None, typer.Option("--license", metavar="NAME", help=_LICENSE)] = None,
    evaluation: Annotated[list[Path] | None, typer.Option(metavar="DIR", help=_EVALUATION)] = None,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    dry_run: doorway.DryRun = False,
) -> None:
    """Push what was trained as one commit, with a model card made of what was measured; the token is in HF_TOKEN."""
    require_extra("train", "toolkit-push")
    from posttrain.push.push import push as send

    overrides = doorway.overrides(set_, run__output_dir=output_dir)
    what = {"weights": weights, "revision": revision, "public": public, "checkpoint": checkpoint, "base": base}
    which = {
        "run_name": run_name,
        "model_index": model_index,
        "overrides": overrides,
        "dry_run": dry_run,
    }
    send(config, repo, licence=license_, evaluations=evaluation or (), **what, **which)
