"""toolkit-predict: answer the prompts of a file or folder."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.config.sections.answerers import Weights
from posttrain.inference.config import load_inference_config
from posttrain.inference.weights import choose_weights
from posttrain.predict.config import ServedConfig, is_served, require_no_weights

main = doorway.command_app()
_WEIGHTS = "merged, adapter, or base (the model before training); auto takes merged where it is there and up to date."


@main.command()
def predict(
    config: doorway.ConfigFile,
    input_: Annotated[Path, typer.Argument(metavar="INPUT", help="A file of prompts, or a folder of .jsonl files.")],
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="The .jsonl file (or folder) to write.")],
    weights: Annotated[Weights, typer.Option(help=_WEIGHTS)] = "auto",
    checkpoint: Annotated[str | None, typer.Option(metavar="STEP", help="A checkpoint's step, or latest.")] = None,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
    shard: doorway.Part = None,
    join: doorway.Join = False,
) -> None:
    """Answer every prompt of INPUT. A killed run goes on where it was when it is started again."""
    overrides = doorway.overrides(set_, run__output_dir=output_dir)
    which = {"checkpoint": checkpoint, "run_name": run_name, "model_index": model_index}
    if is_served(config):
        given = load_config(config, ServedConfig, overrides)
        require_no_weights({"weights": None if weights == "auto" else weights, **which})
        model = given.model
    else:
        given = load_inference_config(config, overrides)
        model = choose_weights(config, weights, **which, overrides=overrides)
    if not dry_run:
        require_extra("train", "toolkit-predict")
    from posttrain.inference.answering.shards import Shard
    from posttrain.predict.plan import PredictJob, show_plan

    part = Shard.chosen(shard, join=join)
    job = PredictJob(model, given.generation, input_, output, given.on_bad_record, overwrite, part, join)
    if dry_run:
        return show_plan(job)
    from posttrain.predict import generate

    generate.join(job) if join else generate.predict(job)
