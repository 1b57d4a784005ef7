"""toolkit-data run: sample answers, grade them, and keep those worth training on."""

from typing import Annotated

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.synthesis.config import DataConfig


def run(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    output: doorway.Output = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(DataConfig)] = False,
) -> None:
    """Sample answers, grade them, and write those worth training on. A killed run goes on where it was."""
    settings = load_config(config, DataConfig, doorway.overrides(set_, output=output))
    require_extra("server", "toolkit-data run")
    if dry_run:
        from posttrain.synthesis.prompts import show_plan

        return show_plan(settings)
    require_extra("train", "toolkit-data run")
    from posttrain.synthesis.round import run as sample_and_keep

    sample_and_keep(settings, overwrite=overwrite)
