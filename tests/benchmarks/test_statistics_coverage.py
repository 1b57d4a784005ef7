"""Intervals hold the true value and tests are right as often as they say, over the whole grid."""

import json
from collections.abc import Iterable, Mapping
from math import comb
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORDED_DRAWS = 2000
RECORDED = ROOT / "benchmarks" / "results" / "statistics.json"
LINES: dict[tuple[str, str, str], dict[str, float]] = {
    (line["table"], line["what"], line["prompts"]): line["cells"] for line in json.loads(RECORDED.read_text())
}


@pytest.fixture
def coverage(benchmark_module: Any) -> Any:
    return benchmark_module("statistics_coverage")


def cells_of(table: str, parts: Iterable[Any]) -> dict[tuple[str, str, str], float]:
    """The recorded figures of all cells of a table, by line and cell."""
    chosen = [part for part in parts if part.table == table]
    return {
        (part.what, part.prompts, name): figure
        for part in chosen
        for name, figure in LINES[table, part.what, part.prompts].items()
    }


def test_intervals_hold_the_true_value_in_95_of_100_cases_and_nowhere_in_fewer_than_90(coverage: Any) -> None:
    parts = coverage.parts()
    found = [(part, LINES[part.table, part.what, part.prompts]) for part in parts]
    averages = {method: fmean(cells) for method, cells in coverage.averaged(found).items()}
    # To a tenth of a point: Tango's is 96.03 %.
    assert {method: round(average, 3) for method, average in averages.items() if not 0.94 < average < 0.9605} == {}
    cells = cells_of(coverage.COVERAGE, [part for part in parts if not part.is_too_small])
    assert len(cells) > 1500
    assert fmean(cells.values()) == pytest.approx(0.95, abs=0.01)
    assert {cell: figure for cell, figure in cells.items() if figure < 0.9} == {}


def test_equal_models_are_told_apart_in_no_more_than_6_of_100_cases(coverage: Any) -> None:
    cells = cells_of(coverage.SIZE, coverage.parts())
    assert {cell: figure for cell, figure in cells.items() if figure > 0.06} == {}
    exact = [figure for (what, *_), figure in cells.items() if what == "McNemar"]
    assert max(exact) <= 0.05


def test_the_smallest_difference_is_told_in_about_80_of_100_cases(coverage: Any) -> None:
    cells = cells_of(coverage.POWER, coverage.parts())
    assert {cell: figure for cell, figure in cells.items() if not 0.77 < figure < 0.93} == {}


def test_the_page_shows_the_recorded_figures(coverage: Any) -> None:
    parts = coverage.parts()
    shown = coverage.markdown(parts, [LINES[part.table, part.what, part.prompts] for part in parts])
    assert shown in (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")


def test_counted_figures_are_those_that_the_code_gives(coverage: Any) -> None:
    counted = [part for part in coverage.parts() if not part.drawn and part.prompts in ("20", "30", "100")]
    assert len(counted) == 15
    for part in counted:
        assert part.computed(0) == pytest.approx(LINES[part.table, part.what, part.prompts], abs=1e-5), part.what


@pytest.mark.parametrize("prompts", ["20", "100 in 20 × 5", "400 in 100, of 1 to 13"])
def test_drawn_figures_are_those_that_the_code_gives_but_for_chance(prompts: str, coverage: Any) -> None:
    draws = 40
    drawn = [part for part in coverage.parts() if part.drawn and part.prompts == prompts and "losses" not in part.what]
    assert len(drawn) >= 4
    for part in drawn:
        agree(part.computed(draws), LINES[part.table, part.what, part.prompts], draws)


def agree(found: Mapping[str, float], recorded: Mapping[str, float], draws: int) -> None:
    """No cell is so far off as chance takes one of a million, and their mean is within four standard deviations."""
    assert found.keys() == recorded.keys()
    for name, share in recorded.items():
        count, error = round(found[name] * draws), 3 * (max(share * (1 - share), 0.001) / RECORDED_DRAWS) ** 0.5
        assert at_least(count, draws, min(1.0, share + error)) > 1e-6, name
        assert at_least(draws - count, draws, min(1.0, 1 - share + error)) > 1e-6, name
    variances = [max(share * (1 - share), 0.02) / draws for share in recorded.values()]
    assert fmean(found.values()) == pytest.approx(
        fmean(recorded.values()), abs=4 * sum(variances) ** 0.5 / len(recorded)
    )


def at_least(count: int, draws: int, share: float) -> float:
    """The chance of `count` or more of `draws`, each with probability `share`."""
    return sum(comb(draws, k) * share**k * (1 - share) ** (draws - k) for k in range(count, draws + 1))
