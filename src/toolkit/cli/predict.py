"""toolkit-predict: answer the prompts of a file or folder."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.doorway import (
    ConfigFile,
    Debug,
    Overrides,
    Overwrite,
    RunName,
    Version,
    clear_errors,
    command_app,
)
from toolkit.core.config.load import load_config
from toolkit.core.extras import require_extra
from toolkit.predict.config import PredictConfig
from toolkit.predict.weights import Weights

main = command_app()
_WEIGHTS = "merged, adapter, or base (the model before training); auto takes merged where it is there."


@main.command()
def predict(
    config: ConfigFile,
    input_: Annotated[Path, typer.Argument(metavar="INPUT", help="A .jsonl file, or a folder of them.")],
    output: Annotated[Path, typer.Argument(help="The .jsonl file (or folder) to write.")],
    weights: Annotated[Weights, typer.Option(help=_WEIGHTS)] = "auto",
    checkpoint: Annotated[str | None, typer.Option(help="A step, or latest: that checkpoint's adapter.")] = None,
    skip_bad_records: Annotated[bool, typer.Option("--skip-bad-records", help="Leave bad rows out.")] = False,
    set_: Overrides = None,
    run_name: RunName = None,
    overwrite: Overwrite = False,
    debug: Debug = False,
    version: Version = False,
) -> None:
    """Answer every prompt of INPUT. A killed run goes on where it was when it is started again."""
    with clear_errors(debug):
        settings = load_config(config, PredictConfig, set_ or ())
        require_extra("train", "toolkit-predict")
        from toolkit.predict.run import PredictJob
        from toolkit.predict.run import predict as run_predict
        from toolkit.predict.weights import choose_weights

        model, adapter = choose_weights(settings, config, run_name, weights, checkpoint)
        on_bad_record = "skip" if skip_bad_records else "error"
        run_predict(
            PredictJob(model, adapter, settings.chat, settings.generation, input_, output, on_bad_record, overwrite)
        )
