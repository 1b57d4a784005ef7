"""toolkit-eval: measure models on tasks, and compare them."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.evaluate.config import EvalConfig

main = doorway.command_app()
_CONFIGS = "Training configs, or a run's config.yaml, whose models are measured too, under the names of the files."
_TASKS = "Only these tasks, comma-separated."
_JSON = "Print the results as one JSON object."


@main.command()
def evaluate(
    config: doorway.ConfigFile,
    configs: Annotated[list[Path] | None, typer.Argument(metavar="[MODELS]...", help=_CONFIGS)] = None,
    baseline: Annotated[str | None, typer.Option(metavar="NAME", help="Compare with this model.")] = None,
    tasks: Annotated[str | None, typer.Option(metavar="A,B", help=_TASKS)] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Ask at most N prompts of each task.")] = None,
    json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
    set_: doorway.Overrides = None,
    output: doorway.Output = None,
    dry_run: doorway.DryRun = False,
    schema: Annotated[bool, doorway.schema_option(EvalConfig)] = False,
) -> None:
    """Measure the models of CONFIG on its tasks; what was answered before is not asked again."""
    settings = load_config(config, EvalConfig, doorway.overrides(set_, output=output))
    require_extra("train", "toolkit-eval")
    require_extra("server", "toolkit-eval")
    from posttrain.evaluate.run import Choice, show_plan
    from posttrain.evaluate.run import evaluate as measure

    chosen = Choice(configs or (), baseline, None if tasks is None else tasks.split(","), limit)
    if dry_run:
        return show_plan(settings, chosen)
    results = measure(settings, chosen)
    if json:
        from json import dumps

        typer.echo(dumps(results.as_json(), ensure_ascii=False))
