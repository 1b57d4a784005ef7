"""toolkit-rl-grade: grade a file of completions."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig

main = doorway.command_app()
_COMPLETIONS = (
    "A .jsonl file of completions, such as toolkit-predict writes. Each line names the row that it answers: by "
    "sample_id, by dataset and line, or by its prompt."
)
_OUTPUT = "A .jsonl file to write: one line per completion, with its reward and scores."
_ITERATION = "Grade as at this iteration what names none of its own."


@main.command()
def rl_grade(
    config: doorway.ConfigFile,
    completions: Annotated[Path, typer.Argument(metavar="COMPLETIONS", help=_COMPLETIONS)],
    output: Annotated[Path | None, typer.Argument(metavar="OUTPUT", help=_OUTPUT)] = None,
    iteration: Annotated[int, typer.Option(metavar="N", min=0, help=_ITERATION)] = 0,
    set_: doorway.Overrides = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
) -> None:
    """Grade COMPLETIONS with the graders of a dataserver's CONFIG, without a server and without a journal."""
    settings = load_config(config, DataserverConfig, set_ or ())
    require_extra("server", "toolkit-rl-grade")
    from posttrain.dataserver.offline.grade import grade_file

    grade_file(settings, completions, output, iteration=iteration, overwrite=overwrite, dry_run=dry_run)
