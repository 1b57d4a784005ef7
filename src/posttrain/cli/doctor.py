"""toolkit-doctor: check and measure the machine and the installation."""

from pathlib import Path
from typing import Annotated

import typer

from posttrain.cli import doorway

main = doorway.command_app()
_CONFIG = "Also check what this config needs: model, memory, disk, port, tokens."
_ONLY = "Run only this check. Repeatable."
_MEND = "Run the command that this check tells, and check again. Repeatable; otherwise nothing is changed."
_JSON = "Print the findings as JSON."


@main.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help=_CONFIG, show_default=False)] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="CHECK", help=_ONLY)] = None,
    mend: Annotated[list[str] | None, typer.Option(metavar="CHECK", help=_MEND)] = None,
    json: Annotated[bool, typer.Option("--json", help=_JSON)] = False,
    set_: doorway.Overrides = None,
) -> None:
    """Check what training needs here, and tell what is slow or broken and the command that mends it."""
    from posttrain.doctor.doctor import Request
    from posttrain.doctor.doctor import doctor as check

    check(config, set_ or (), Request(only or (), mend or (), json))
