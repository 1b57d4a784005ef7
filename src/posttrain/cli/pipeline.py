"""toolkit-pipeline: run several commands one after another, and only those whose results are missing."""

from typing import Annotated

import typer

from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.pipeline.config import PipelineConfig

main = doorway.command_app()
_STEP = "STEP"
_UNTIL = "Only this step, and those that it needs."
_RERUN = "Make the results of this step again. Repeatable."
_SKIP = "Leave this step out; what starts from it starts from where it would. Repeatable."
_STOP = "Start no other step after one has failed."
_PRUNE = "Remove results that the config does not name any more, and start nothing."


@main.command()
def pipeline(
    config: doorway.ConfigFile,
    until: Annotated[str | None, typer.Option(metavar=_STEP, help=_UNTIL)] = None,
    rerun: Annotated[list[str] | None, typer.Option(metavar=_STEP, help=_RERUN)] = None,
    skip: Annotated[list[str] | None, typer.Option(metavar=_STEP, help=_SKIP)] = None,
    stop_at_failure: Annotated[bool, typer.Option("--stop-at-failure", help=_STOP)] = False,
    prune: Annotated[bool, typer.Option("--prune", help=_PRUNE)] = False,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(PipelineConfig)] = False,
) -> None:
    """Run the steps of CONFIG whose results are missing, and write a report; interrupted, it goes on."""
    settings = load_config(config, PipelineConfig, doorway.overrides(set_, output_dir=output_dir))
    from posttrain.pipeline import pipeline as steps

    wanted = steps.Wanted(until, rerun or (), skip or (), stop_at_failure)
    name = run_name or settings.name or config.stem
    if dry_run:
        return steps.show_plan(settings, name, wanted)
    if prune:
        return steps.prune(settings, name, wanted)
    steps.run_pipeline(settings, name, wanted)
