"""toolkit-rl-debug: sample and grade completions of a few prompts, and report what would keep a run from learning."""

from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.rl.config import RLConfig
from posttrain.runs.checks import choose_run_name

main = doorway.command_app()
_SAMPLES = "Completions of each prompt; rollout.generations unless given."
_ITERATION = "Optimizer steps done so far: decides the prompts, and how they are graded."
_WEIGHTS = "auto: the run's, where it has a model or checkpoint; start: as before training; or a model's folder."


@main.command()
def rl_debug(
    config: doorway.ConfigFile,
    prompts: Annotated[int, typer.Option(metavar="N", min=1, help="How many prompts are asked.")] = 4,
    samples: Annotated[int | None, typer.Option(metavar="N", min=1, help=_SAMPLES)] = None,
    iteration: Annotated[int, typer.Option(metavar="N", min=0, help=_ITERATION)] = 0,
    weights: Annotated[str, typer.Option(metavar="WHICH", help=_WEIGHTS)] = "auto",
    held_out: Annotated[bool, typer.Option("--held-out", help="Ask held-out prompts instead.")] = False,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
) -> None:
    """Sample a few prompts as training would, grade the completions, and tell what would keep it from learning."""
    settings = load_config(config, RLConfig, doorway.overrides(set_, run__output_dir=output_dir))
    name = choose_run_name(run_name, settings.run, config)
    require_extra("train", "toolkit-rl-debug")
    from posttrain.rl.debug.look import DebugRequest, show_rollouts

    show_rollouts(settings, name, DebugRequest(prompts, samples, iteration, weights, held_out))
