"""toolkit-runs: compare, verify and list runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from posttrain.cli import doorway

main = doorway.command_app()
_JSON: Any = typer.Option("--json", help="Print one JSON object.")
_RUN = "The folder of a run."
_DIR = "The folder that holds the runs."
_PAGE = "The page to write; DIR/report.html unless given."
_WATCH = "Write it again whenever a run goes on, until Ctrl-C."


@main.callback(help="Compare runs, verify them, list them, and report on them.")
def runs(version: doorway.Version = False) -> None:
    """Only what all of them share."""


@main.command()
def diff(
    one: Annotated[Path, typer.Argument(metavar="A", help=_RUN)],
    other: Annotated[Path, typer.Argument(metavar="B", help=_RUN)],
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Name every difference of A and B; exit code 1 where there is one besides times."""
    from posttrain.inspect.diff import compare
    from posttrain.inspect.folders import read_run
    from posttrain.inspect.show import show_comparison, show_comparison_as_json

    comparison = compare(read_run(one), read_run(other))
    show = show_comparison_as_json if json else show_comparison
    show(comparison, (str(one), str(other)))
    raise typer.Exit(0 if comparison.is_same else 1)


@main.command()
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN)],
) -> None:
    """Recompute the row order of RUN and measure its checkpoints; exit code 1 where something does not hold."""
    from posttrain.base.console import console
    from posttrain.inspect.folders import read_run
    from posttrain.inspect.show import show_findings
    from posttrain.inspect.verify import verify as findings_of

    findings = findings_of(read_run(run), console.print)
    show_findings(findings)
    raise typer.Exit(any(each.outcome == "fails" for each in findings))


@main.command("list")
def list_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=_DIR)] = Path("runs"),
) -> None:
    """List the runs below DIR: how far each is, and what it has come to."""
    from posttrain.inspect.listing import list_runs
    from posttrain.inspect.show import show_runs

    show_runs(list_runs(folder), str(folder))


@main.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=_DIR)] = Path("runs"),
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help=_PAGE)] = None,
    watch: Annotated[bool, typer.Option("--watch", help=_WATCH)] = False,
) -> None:
    """Write a page about the runs below DIR, or about the run DIR: curves over each other, evaluations, answers."""
    from posttrain.base.console import console
    from posttrain.base.extras import require_extra
    from posttrain.inspect.runs_report import watch_report, write_report

    require_extra("train", "toolkit-runs report")
    page = output or folder / "report.html"
    if watch:
        watch_report(folder, page, console.print)
    write_report(folder, page)
    console.print(f"wrote {page}")
