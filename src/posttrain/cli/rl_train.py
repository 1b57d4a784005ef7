"""toolkit-rl-train: reinforcement learning from graded completions."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.hub.check import require_push
from posttrain.rl.config import RLConfig
from posttrain.runs.checks import choose_run_name, require_optimizer, require_room_for_run

main = doorway.command_app()
_ROLLOUTS = "Train on the rollouts that this run recorded (rollout.record), without generating any."


@main.command()
def rl_train(
    config: doorway.ConfigFile,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    resume: doorway.Resume = False,
    overwrite: doorway.Overwrite = False,
    rollouts_from: Annotated[Path | None, typer.Option(metavar="RUN", help=_ROLLOUTS)] = None,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
    schema: Annotated[bool, doorway.schema_option(RLConfig)] = False,
    version: doorway.Version = False,
) -> None:
    """Train by GRPO or a relative, with prompts and rewards from a dataserver."""
    with doorway.clear_errors(debug):
        settings = load_config(config, RLConfig, [*(set_ or ()), *doorway.as_override(output_dir)])
        name = choose_run_name(run_name, settings.run, config)
        require_room_for_run(settings.run)
        if dry_run:
            require_push(settings)
            from posttrain.rl.plan import show_plan

            return show_plan(settings, name, resume=resume, overwrite=overwrite, rollouts_from=rollouts_from)
        require_extra("train", "toolkit-rl-train")
        require_optimizer(settings.training)  # not in a dry run, whose machine may be another than the run's
        from posttrain.rl.train import train

        train(settings, name, resume=resume, overwrite=overwrite, rollouts_from=rollouts_from)
