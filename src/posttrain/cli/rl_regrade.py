"""toolkit-rl-regrade: grade completions again, with other graders."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from posttrain.base.extras import require_extra
from posttrain.cli import doorway
from posttrain.config.load import load_config
from posttrain.dataserver.config.dataserver import DataserverConfig

main = doorway.command_app()
_SOURCE = "An SQLite journal, or a .jsonl file that toolkit-rl-grade wrote; the config's own journal unless given."
_OUTPUT = "A .jsonl file to write: one line per completion, with its reward before and now."
_FROM = "Only what was graded at this iteration or later."
_TO = "Only what was graded at this iteration or earlier."


@main.command()
def rl_regrade(
    config: doorway.ConfigFile,
    source: Annotated[Path | None, typer.Argument(metavar="SOURCE", help=_SOURCE)] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help=_OUTPUT)] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only the completions of this run.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only this data set.")] = None,
    status: Annotated[Literal["ok", "abstain", "error"] | None, typer.Option(help="Only what had this status.")] = None,
    from_iteration: Annotated[int | None, typer.Option(metavar="N", min=0, help=_FROM)] = None,
    to_iteration: Annotated[int | None, typer.Option(metavar="N", min=0, help=_TO)] = None,
    set_: doorway.Overrides = None,
    overwrite: doorway.Overwrite = False,
    dry_run: doorway.DryRun = False,
) -> None:
    """Grade what was graded before with the graders of CONFIG, and show what would change.

    A journal is only read, also while a server writes to it. Nothing is trained.
    """
    settings = load_config(config, DataserverConfig, set_ or ())
    require_extra("server", "toolkit-rl-regrade")
    from posttrain.dataserver.journal.reader import RowFilter
    from posttrain.dataserver.offline.regrade import regrade

    chosen = RowFilter(
        run_id=run, dataset=dataset, status=status, first_iteration=from_iteration, last_iteration=to_iteration
    )
    regrade(settings, source, output, chosen, overwrite=overwrite, dry_run=dry_run)
