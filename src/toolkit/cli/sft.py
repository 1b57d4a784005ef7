"""toolkit-sft: supervised fine-tuning."""

from typing import Annotated

from toolkit.cli.checks import choose_run_name, require_data_files, require_optimizer, require_room_for_run
from toolkit.cli.doorway import (
    ConfigFile,
    Debug,
    DryRun,
    Overrides,
    Overwrite,
    Resume,
    RunName,
    Version,
    clear_errors,
    command_app,
    schema_option,
)
from toolkit.core.config.load import load_config
from toolkit.core.extras import require_extra
from toolkit.sft.config import SFTConfig

main = command_app()


@main.command()
def sft(
    config: ConfigFile,
    set_: Overrides = None,
    run_name: RunName = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    debug: Debug = False,
    schema: Annotated[bool, schema_option(SFTConfig)] = False,
    version: Version = False,
) -> None:
    """Fine-tune a chat model on conversations, in the stages of a curriculum."""
    with clear_errors(debug):
        settings = load_config(config, SFTConfig, set_ or ())
        name = choose_run_name(run_name, settings.run, config)
        require_room_for_run(settings.run)
        require_data_files(settings.data_sources())
        if dry_run:
            from toolkit.sft.plan import show_plan

            show_plan(settings, name, resume=resume, overwrite=overwrite)
            return
        require_extra("train", "toolkit-sft")
        require_optimizer(settings.training)  # not in a dry run, whose machine may be another than the run's
        from toolkit.sft.train import train

        train(settings, name, resume=resume, overwrite=overwrite)
