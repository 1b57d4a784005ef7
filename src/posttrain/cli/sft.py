"""toolkit-sft: supervised fine-tuning."""

from typing import Annotated

from posttrain.cli import doorway
from posttrain.cli.training import load_run, require_start
from posttrain.data.readers.texts import require_readable
from posttrain.runs.checks import require_data_files
from posttrain.sft.config import SFTConfig

main = doorway.command_app()


@main.command()
def sft(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    reshard: doorway.Reshard = False,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(SFTConfig)] = False,
) -> None:
    """Fine-tune a chat model on conversations, in the stages of a curriculum."""
    settings, name = load_run(config, SFTConfig, set_, output_dir, run_name)
    require_data_files(settings.data_sources())
    require_readable(settings.data_sources().values(), settings.on_bad_record)
    require_start(settings, "toolkit-sft", dry_run=dry_run)
    if dry_run:
        from posttrain.sft.plan import show_plan

        return show_plan(settings, name, resume=resume or reshard, overwrite=overwrite)
    from posttrain.sft.train import train

    train(settings, name, resume=resume or reshard, overwrite=overwrite, reshard=reshard)
