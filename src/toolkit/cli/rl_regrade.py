"""toolkit-rl-regrade: grade a journal once more, with other graders."""

from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import doorway
from toolkit.core.config.load import load_config
from toolkit.core.extras import require_extra
from toolkit.dataserver.config.dataserver import DataserverConfig

main = doorway.command_app()
_SOURCE = "An SQLite journal, or a .jsonl file that toolkit-rl-grade wrote; the config's own journal unless given."
_OUTPUT = "Write one line per completion, with its reward before and now, to this .jsonl file."


@main.command()
def rl_regrade(
    config: doorway.ConfigFile,
    source: Annotated[Path | None, typer.Argument(metavar="[SOURCE]", help=_SOURCE)] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help=_OUTPUT)] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only this run's completions.")] = None,
    from_iteration: Annotated[int | None, typer.Option(metavar="N", help="Only from this iteration on.")] = None,
    to_iteration: Annotated[int | None, typer.Option(metavar="N", help="Only up to this iteration.")] = None,
    set_: doorway.Overrides = None,
    debug: doorway.Debug = False,
    version: doorway.Version = False,
) -> None:
    """Grade what was graded before with the graders of CONFIG, and show what would change. Nothing is trained."""
    with doorway.clear_errors(debug):
        settings = load_config(config, DataserverConfig, set_ or ())
        require_extra("server", "toolkit-rl-regrade")
        from toolkit.dataserver.journal.reader import RowFilter
        from toolkit.dataserver.offline.regrade import regrade

        chosen = RowFilter(run_id=run, first_iteration=from_iteration, last_iteration=to_iteration)
        regrade(settings, source, output, chosen)
