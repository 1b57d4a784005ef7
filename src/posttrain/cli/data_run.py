"""toolkit-data run: sample answers, grade them, and keep those worth training on."""

from typing import Annotated

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.inference.answering.shards import Shard
from posttrain.synthesis.config import DataConfig


def run(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    output: doorway.Output = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    shard: doorway.Part = None,
    join: doorway.Join = False,
    schema: Annotated[bool, doorway.schema_option(DataConfig)] = False,
) -> None:
    """Sample answers, grade them, and write those worth training on. A killed run goes on where it was."""
    settings = load_config(config, DataConfig, doorway.overrides(set_, output=output))
    part = Shard.chosen(shard, join=join)
    require_extra("server", "toolkit-data run")
    if dry_run:
        from posttrain.synthesis.prompts import show_plan

        return show_plan(settings)
    require_extra("train", "toolkit-data run")
    from posttrain.synthesis import round

    if part is not None:
        return round.run_shard(settings, part, overwrite=overwrite)
    round.run(settings, overwrite=overwrite, join=join)
