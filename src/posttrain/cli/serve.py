"""toolkit-serve: the models of a run behind OpenAI's API."""

from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.inference.config import load_inference_config
from posttrain.serve.config import serve_config

main = doorway.command_app()
_WEIGHTS = "Serve only these: merged, adapter, base, auto, latest, or a checkpoint's step. Repeatable."
_TOKEN = "Environment variable with the token that requests must carry; needed where other machines can ask."
_LIMIT = "Change a limit: queue, n, seconds, body_mb, receive_seconds, connections, or loaded. Repeatable."


@main.command()
def serve(
    config: doorway.ConfigFile,
    weights: Annotated[list[str] | None, typer.Option(metavar="KIND", help=_WEIGHTS)] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", help="Port to listen on; 0 picks a free one.")] = 8000,
    token_env: Annotated[str | None, typer.Option(metavar="NAME", help=_TOKEN)] = None,
    limit: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help=_LIMIT)] = None,
    set_: doorway.Overrides = None,
    run_name: doorway.RunName = None,
    output_dir: doorway.OutputDir = None,
    model_index: doorway.ModelIndex = None,
    dry_run: doorway.DryRun = False,
    debug: doorway.Debug = False,
) -> None:
    """Answer OpenAI's chat and text completions with the model of CONFIG, before, during and after its training."""
    settings = serve_config(host, port, token_env, limit or ())
    overrides = doorway.overrides(set_, run__output_dir=output_dir)
    given = load_inference_config(config, overrides)
    for extra in ("train", "server"):
        require_extra(extra, "toolkit-serve")
    from posttrain.serve.models import Choice
    from posttrain.serve.web import run

    choice = Choice(config, run_name, model_index, overrides)
    job = run.ServeJob.of(choice, weights or (), given.generation, settings)
    run.check(job) if dry_run else run.serve(job, debug)
