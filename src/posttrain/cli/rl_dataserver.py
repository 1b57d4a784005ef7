"""toolkit-rl-dataserver: serve prompts and grade completions."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig

main = doorway.command_app()
_READY = "Write a JSON file with url, pid and config_id once requests are served; removed at the end."


@main.command()
def rl_dataserver(
    config: doorway.ConfigFile,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Like listen.port; 0 picks a free one.")] = None,
    ready_file: Annotated[Path | None, typer.Option(metavar="FILE", help=_READY)] = None,
    set_: doorway.Overrides = None,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
    schema: Annotated[bool, doorway.schema_option(DataserverConfig)] = False,
) -> None:
    """Serve prompts and rewards for reinforcement learning, by the stages of a curriculum."""
    overrides = [*(set_ or ()), *([f"listen.port={port}"] if port is not None else [])]
    settings = load_config(config, DataserverConfig, overrides)
    require_extra("server", "toolkit-rl-dataserver")
    if dry_run:
        from posttrain.dataserver.plan import show_plan

        return show_plan(settings)
    from posttrain.dataserver.web.serve import serve

    serve(settings, ready_file, debug)
