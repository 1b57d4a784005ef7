"""toolkit-rl-train: reinforcement learning from graded completions."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli import doorway
from posttrain.cli.training import load_run, require_start
from posttrain.rl.config import RLConfig

main = doorway.command_app()
_ROLLOUTS = "Train on the rollouts that this run recorded (rollout.record), without generating any."


@main.command()
def rl_train(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    reshard: doorway.Reshard = False,
    overwrite: doorway.Overwrite = False,
    rollouts_from: Annotated[Path | None, typer.Option(metavar="RUN", help=_ROLLOUTS)] = None,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(RLConfig)] = False,
) -> None:
    """Train by GRPO or a relative, with prompts and rewards from a dataserver."""
    settings, name = load_run(config, RLConfig, set_, output_dir, run_name)
    require_start(settings, "toolkit-rl-train", dry_run=dry_run)
    if dry_run:
        from posttrain.rl.plan import show_plan

        return show_plan(settings, name, resume=resume or reshard, overwrite=overwrite, rollouts_from=rollouts_from)
    from posttrain.rl.train import train

    way = {"resume": resume or reshard, "overwrite": overwrite, "reshard": reshard}
    train(settings, name, **way, rollouts_from=rollouts_from)
