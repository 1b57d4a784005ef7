"""toolkit-export: write a trained model as a GGUF file that was compared with it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.export.gguf_types import GgufType

main = doorway.command_app()
_OUTPUT = "The .gguf file to write; <run>/NAME-TYPE.gguf unless given."
_LLAMA_CPP = "Folder of your own llama.cpp, built or not; what it lacks comes from the extra gguf."
_PROMPTS = "Prompts to compare answers to, as for toolkit-predict; general questions unless given."
_WEIGHTS = "adapter, what was trained; or base, the model that the config names, written to --output."


@main.command()
def export(
    config: doorway.ConfigFile,
    to: Annotated[Literal["gguf"], typer.Option(help="What to write.")] = "gguf",
    type_: Annotated[GgufType, typer.Option("--type", help="How weights are stored.")] = "q8_0",
    llama_cpp: Annotated[Path | None, typer.Option(metavar="DIR", help=_LLAMA_CPP)] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help=_OUTPUT)] = None,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help=_PROMPTS)] = None,
    weights: Annotated[Literal["adapter", "base"], typer.Option(help=_WEIGHTS)] = "adapter",
    checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="A checkpoint's step, or latest.")] = None,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
) -> None:
    """Write what was trained for llama.cpp and ollama; a file that does not answer as the model does is refused."""
    require_extra("train", "toolkit-export")
    from posttrain.export.export import export as write

    files = {"kind": type_, "llama_cpp": llama_cpp, "output": output, "prompts": prompts}
    which = {
        "weights": weights,
        "checkpoint": checkpoint,
        "run_name": run_name,
        "model_index": model_index,
        "overrides": doorway.overrides(set_, run__output_dir=output_dir),
    }
    write(config, **files, **which, overwrite=overwrite, dry_run=dry_run)
