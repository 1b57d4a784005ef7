"""toolkit-dpo: preference optimisation."""

from typing import Annotated

from toolkit.cli import doorway
from toolkit.cli.checks import choose_run_name, require_data_files, require_optimizer, require_room_for_run
from toolkit.core.config.load import load_config
from toolkit.core.extras import require_extra
from toolkit.dpo.config.dpo import DPOConfig

main = doorway.command_app()


@main.command()
def dpo(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    resume: doorway.Resume = False,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
    schema: Annotated[bool, doorway.schema_option(DPOConfig)] = False,
    version: doorway.Version = False,
) -> None:
    """Train a chat model to prefer one answer to another, in the stages of a curriculum."""
    with doorway.clear_errors(debug):
        settings = load_config(config, DPOConfig, set_ or ())
        name = choose_run_name(run_name, settings.run, config)
        require_room_for_run(settings.run)
        require_data_files(settings.data_sources())
        if dry_run:
            from toolkit.dpo.plan import show_plan

            show_plan(settings, name, resume=resume, overwrite=overwrite)
            return
        require_extra("train", "toolkit-dpo")
        require_optimizer(settings.training)  # not in a dry run, whose machine may be another than the run's
        from toolkit.dpo.train import train

        train(settings, name, resume=resume, overwrite=overwrite)
