"""toolkit-preview: show what training sees."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli import doorway
from posttrain.errors import ConfigError

main = doorway.command_app()
_ROW = "Show only the row on this line of a data set's file, trained or not."
_WORST = "How many of the longest, the most cut and the least trained rows to show."
_HTML = "Also write the preview as one HTML file."
_STAGE = "Only rows that this stage draws."


@main.command()
def preview(
    config: doorway.ConfigFile,
    row: Annotated[str | None, typer.Option(metavar="FILE:LINE", help=_ROW)] = None,
    worst: Annotated[int, typer.Option(metavar="N", min=0, help=_WORST)] = 1,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help=_HTML)] = None,
    stage: Annotated[str | None, typer.Option(metavar="NAME", help=_STAGE)] = None,
    ids: Annotated[bool, typer.Option("--ids", help="Show each token's id.")] = False,
    set_: doorway.Overrides = None,
    overwrite: doorway.Overwrite = False,
) -> None:
    """Show the rows of CONFIG as training sees them: which tokens are trained, what is cut off, and in which order."""
    if html is not None and html.suffix != ".html":
        raise ConfigError(f"--html {html}: the name of a page ends in .html")
    from posttrain.base.outputs import checked_output
    from posttrain.preview.preview import Request
    from posttrain.preview.preview import preview as show

    with checked_output(html, [config], overwrite=overwrite, dry_run=False):
        show(config, Request(row, worst, stage, ids), set_ or (), html)
