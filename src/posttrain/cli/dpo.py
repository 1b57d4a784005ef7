"""toolkit-dpo: preference optimisation."""

import sys
from typing import Annotated

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.config.sections.model import run_of_model
from posttrain.dpo.config.dpo import DPOConfig
from posttrain.dpo.preferences import require_readable
from posttrain.dpo.several import train_each
from posttrain.hub.check import require_push
from posttrain.runs.checks import choose_run_name, require_data_files, require_optimizer, require_room_for_run

main = doorway.command_app()


@main.command()
def dpo(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    model_index: doorway.ModelIndex = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
    schema: Annotated[bool, doorway.schema_option(DPOConfig)] = False,
    version: doorway.Version = False,
) -> None:
    """Train a chat model to prefer one answer to another, in the stages of a curriculum."""
    with doorway.clear_errors(debug):
        settings = load_config(config, DPOConfig, [*(set_ or ()), *doorway.as_override(output_dir)])
        name = choose_run_name(run_name, settings.run, config)
        require_room_for_run(settings.run)
        require_data_files(settings.data_sources())
        require_readable(settings.preference_sources().values(), settings.on_bad_record)
        if settings.models and model_index is None:
            return train_each(settings, name, sys.argv[1:], dry_run=dry_run)
        name, settings = run_of_model(name, settings.models, model_index), settings.of_model(model_index)
        if dry_run:
            require_push(settings)
            from posttrain.dpo.plan import show_plan

            return show_plan(settings, name, resume=resume, overwrite=overwrite)
        require_extra("train", "toolkit-dpo")
        require_optimizer(settings.training)  # not in a dry run, whose machine may be another than the run's
        from posttrain.dpo.train import train

        train(settings, name, resume=resume, overwrite=overwrite)
