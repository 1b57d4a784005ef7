"""Print what `toolkit-runs` found, to stdout."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from posttrain.base.console import new_table
from posttrain.inspect.diff import Comparison
from posttrain.inspect.listing import COLUMNS, Summary
from posttrain.inspect.verify import Finding

# Line width where nothing is folded to the terminal: enough for digests and paths.
_WIDEST = 200


def show_comparison(comparison: Comparison, names: tuple[str, str]) -> None:
    """Print one table for each kind of difference, and one of the final values of both runs."""
    groups: dict[str, list[Sequence[Any]]] = {}
    for each in comparison.differences:
        groups.setdefault(each.kind, []).append((each.key, each.one, each.other))
    for kind, rows in groups.items():
        _print_table(kind, ("", *names), rows)
    if comparison.is_same:
        _console().print("nothing differs except times and where the runs are kept")
    final = [(key, *values) for key, values in comparison.final.items()]
    _print_table("final values", ("", *names), final)


def show_comparison_as_json(comparison: Comparison, names: tuple[str, str]) -> None:
    """Print the comparison as one JSON object."""
    value = {
        "one": names[0],
        "other": names[1],
        "is_same": comparison.is_same,
        "differences": [asdict(each) for each in comparison.differences],
        "final": {key: {"one": one, "other": other} for key, (one, other) in comparison.final.items()},
    }
    _console().out(json.dumps(value, indent=2, ensure_ascii=False), highlight=False)


def show_findings(findings: Sequence[Finding]) -> None:
    """Print one line for each finding, outcome first."""
    for each in findings:
        _console().print(f"{each.outcome:<8} {each.text}", soft_wrap=True)


def show_runs(summaries: Sequence[Summary], folder: str) -> None:
    """Print one row for each run."""
    if not summaries:
        _console().print(f"there are no runs in {folder}")
        return
    rows = [each.cells() for each in summaries]
    _print_table("", COLUMNS, rows, folded=False)


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, folded: bool = True) -> None:
    """`folded`: whether to fold values to the terminal's width; otherwise lines may be `_WIDEST` wide."""
    table = new_table(title, *columns, words=columns)
    for row in rows:
        table.add_row(*_cells(row))
    _console(wide=not folded).print(table)


def _cells(values: Sequence[Any]) -> list[str]:
    """Values as text: floats with 6 significant digits; one that would read like that before it, by the difference."""
    cells: list[str] = []
    for value in values:
        cell = "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        before = values[len(cells) - 1] if cells else None
        if isinstance(value, float) and isinstance(before, float) and cell == cells[-1] and value != before:
            cell = f"{cell} {'+' if value > before else '−'} {abs(value - before):.1e}"
        cells.append(cell)
    return cells


def _console(*, wide: bool = False) -> Console:
    console = Console(highlight=False, markup=False, emoji=False)
    if wide or not console.is_terminal:
        console.width = _WIDEST
    return console
