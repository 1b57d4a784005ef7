"""toolkit-chat: talk to a model, or to two beside each other."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.chat.job import Choice, chat_job
from posttrain.cli import doorway
from posttrain.config.sections.answerers import Weights

main = doorway.command_app()
_WEIGHTS = "merged, adapter, or base (the model before training); auto takes merged where it is there and up to date."
_AGAINST = "A second config, which may be the same: its model answers too."
_SYSTEM = "The system message, in the place of the config's."


@main.command()
def chat(
    config: doorway.ConfigFile,
    weights: Annotated[Weights, typer.Option(help=_WEIGHTS)] = "auto",
    checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="A checkpoint's step, or latest.")] = None,
    against: Annotated[Path | None, typer.Option(metavar="CONFIG", help=_AGAINST)] = None,
    against_weights: Annotated[Weights, typer.Option(help="The weights of that model.")] = "auto",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help=_SYSTEM)] = None,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    dry_run: doorway.DryRun = False,
) -> None:
    """Talk to the model of CONFIG; /help lists the commands. From a pipe, each line is a message or a command."""
    overrides = doorway.overrides(set_, run__output_dir=output_dir)
    choices = [Choice(config, weights, checkpoint, run_name, model_index, overrides)]
    choices += [] if against is None else [Choice(against, against_weights)]
    job = chat_job(choices, system)
    require_extra("train", "toolkit-chat")
    from posttrain.chat import chat as talk

    talk.check(job) if dry_run else talk.chat(job)
