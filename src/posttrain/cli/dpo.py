"""toolkit-dpo: preference optimisation."""

import sys
from typing import Annotated

from posttrain.cli import doorway
from posttrain.cli.training import load_run, require_start
from posttrain.config.sections.model import run_of_model
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.preferences import require_readable
from posttrain.dpo.several import train_each
from posttrain.runs.checks import require_data_files

main = doorway.command_app()


@main.command()
def dpo(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    model_index: doorway.ModelIndex = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    reshard: doorway.Reshard = False,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(DPOConfig)] = False,
) -> None:
    """Train a chat model to prefer one answer to another, in the stages of a curriculum."""
    settings, name = load_run(config, DPOConfig, set_, output_dir, run_name)
    require_data_files(settings.data_sources())
    require_readable(settings.preference_sources().values(), settings.on_bad_record)
    if settings.models and model_index is None:
        return train_each(settings, name, sys.argv[1:], dry_run=dry_run)
    name, settings = run_of_model(name, settings.models, model_index), settings.of_model(model_index)
    require_start(settings, "toolkit-dpo", dry_run=dry_run)
    if dry_run:
        from posttrain.dpo.plan import show_plan

        return show_plan(settings, name, resume=resume or reshard, overwrite=overwrite)
    from posttrain.dpo.train import train

    train(settings, name, resume=resume or reshard, overwrite=overwrite, reshard=reshard)
