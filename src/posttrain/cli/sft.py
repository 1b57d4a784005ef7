"""toolkit-sft: supervised fine-tuning."""

from typing import Annotated

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.data.readers.texts import require_readable
from posttrain.hub.check import require_push
from posttrain.runs.checks import choose_run_name, require_data_files, require_optimizer, require_room_for_run
from posttrain.sft.config import SFTConfig

main = doorway.command_app()


@main.command()
def sft(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
    schema: Annotated[bool, doorway.schema_option(SFTConfig)] = False,
    version: doorway.Version = False,
) -> None:
    """Fine-tune a chat model on conversations, in the stages of a curriculum."""
    with doorway.clear_errors(debug):
        settings = load_config(config, SFTConfig, [*(set_ or ()), *doorway.as_override(output_dir)])
        name = choose_run_name(run_name, settings.run, config)
        require_room_for_run(settings.run)
        require_data_files(settings.data_sources())
        require_readable(settings.data_sources().values(), settings.on_bad_record)
        if dry_run:
            require_push(settings)
            from posttrain.sft.plan import show_plan

            return show_plan(settings, name, resume=resume, overwrite=overwrite)
        require_extra("train", "toolkit-sft")
        require_optimizer(settings.training)  # not in a dry run, whose machine may be another than the run's
        from posttrain.sft.train import train

        train(settings, name, resume=resume, overwrite=overwrite)
