"""How often the intervals of toolkit-eval hold the true value, and how often its tests are wrong, over a grid.

python benchmarks/statistics_coverage.py [--draws N] [--only WORD] [--jobs N] [--output FILE]

Without clusters, values of two or three kinds are counted exactly: every outcome, with its probability. Everything else
is drawn with a fixed seed, --draws times per cell. Prints Markdown tables; --short is for a look at the first numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from zlib import crc32

import measuring
import statistics_grid as grid
from numpy.random import default_rng

from posttrain.base.intervals.paired import FEWEST, difference_interval
from posttrain.evaluate.statistics.wilson import share_interval

PROMPTS = (20, FEWEST, 100, 400)
CLUSTERS = {
    "100 in 20 × 5": (5,) * 20,
    "100 in 33, of 3 or 4": (3,) * 32 + (4,),
    "100 in 50 × 2": (2,) * 50,
    "400 in 20 × 20": (20,) * 20,
    "400 in 32, of 12 or 13": (12,) * 16 + (13,) * 16,
    "400 in 40 × 10": (10,) * 40,
    "400 in 100 × 4": (4,) * 100,
    "400 in 100, of 1 to 13": tuple(1 + round(12 * (place / 99) ** 3) for place in range(100)),
}
METHODS = {
    "Wilson": ("share", "reward 0, ½, 1", "mean of 4 answers", "share or reward"),
    "Tango": ("difference", "difference, with ½s"),
    "Student's t": ("loss",),
}
COVERAGE, SIZE, POWER = "95 % intervals that hold the true value", "equal models told apart", "smallest difference told"


@dataclass(frozen=True)
class Part:
    """A line of a table: a quantity with a number of prompts.

    Attributes:
        figures: the figure of each cell, from the number of draws and a generator.
        independent: the number of prompts, or of equal clusters that say as much.
        drawn: whether the outcomes are drawn, rather than counted.
    """

    table: str
    what: str
    prompts: str
    figures: Callable[..., grid.Figures]
    independent: float
    drawn: bool = True

    @property
    def is_too_small(self) -> bool:
        """Whether the verdict is "too few prompts"."""
        return self.independent < FEWEST

    def computed(self, draws: int) -> grid.Figures:
        """The figure of each cell, with random numbers of the part's own."""
        return self.figures(draws=draws, chance=default_rng(crc32(f"{self.table}{self.what}{self.prompts}".encode())))


def main() -> None:
    """Compute all parts, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--draws", type=int, default=2000, help="draws per cell, where outcomes are drawn")
    parser.add_argument("--only", default="", help="only parts whose name, or number of prompts, has this")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    chosen = [part for part in parts() if options.only in f"{part.what}, {part.prompts}"]
    if options.short:
        chosen = [part for part in chosen if part.prompts == "20"]
    draws = 200 if options.short else options.draws
    with ProcessPoolExecutor(options.jobs) as pool:
        figures = list(pool.map(Part.computed, chosen, [draws] * len(chosen)))
    numbers = [
        {"table": part.table, "what": part.what, "prompts": part.prompts, "cells": rounded(found)}
        for part, found in zip(chosen, figures, strict=True)
    ]
    measuring.publish(numbers, markdown(chosen, figures), options.output)


def rounded(figures: grid.Figures) -> grid.Figures:
    """As the numbers are kept."""
    return {name: round(figure, 5) for name, figure in figures.items()}


def markdown(chosen: Sequence[Part], figures: Sequence[grid.Figures]) -> str:
    """A table for each kind of figure."""
    found = list(zip(chosen, figures, strict=True))
    tables = []
    for table, worst in ((COVERAGE, "lowest"), (SIZE, "highest"), (POWER, "lowest")):
        rows = [line(part, cells, max if worst == "highest" else min) for part, cells in found if part.table == table]
        if rows:
            head = [table, "prompts", "cells", "", "average", worst, "where"]
            tables.append(measuring.markdown_table(head, rows))
    methods = averaged(found)
    methods["all"] = [each for cells in methods.values() for each in cells]
    rows = [[method, str(len(cells)), f"{fmean(cells):.1%}"] for method, cells in methods.items() if cells]
    return "\n\n".join([*tables, measuring.markdown_table(["without what is too few", "cells", "average"], rows)])


def averaged(found: Iterable[tuple[Part, grid.Figures]]) -> dict[str, list[float]]:
    """The coverage of each method in all cells where there are enough prompts for a verdict."""
    cells: dict[str, list[float]] = {method: [] for method in METHODS}
    for part, figures in found:
        for method, what in METHODS.items():
            if part.table == COVERAGE and part.what in what and not part.is_too_small:
                cells[method] += figures.values()
    return cells


def line(part: Part, cells: grid.Figures, worst: Callable[..., str]) -> list[str]:
    """A part's line of its table."""
    where = worst(cells, key=lambda name: cells[name])
    prompts = f"{part.prompts}: too few" if part.is_too_small else part.prompts
    counts = [str(len(cells)), "drawn" if part.drawn else "exact"]
    return [part.what, prompts, *counts, f"{fmean(cells.values()):.1%}", f"{cells[where]:.1%}", where]


def parts() -> list[Part]:
    """All lines, in the order of the tables."""
    found = []
    for count in PROMPTS:
        shares = partial(grid.coverage, share_interval, prompts=count)
        changes = partial(grid.coverage, difference_interval, prompts=count)
        sizes = partial(grid.size, prompts=count)
        half_changes = grid.half_change_cells(equal=False)
        counted = [
            (COVERAGE, "share", partial(shares, grid.RIGHT, grid.share_cells())),
            (COVERAGE, "reward 0, ½, 1", partial(shares, grid.HALF, grid.half_cells())),
            (COVERAGE, "difference", partial(changes, grid.CHANGE, grid.change_cells())),
            (SIZE, "McNemar", partial(sizes, grid.CHANGE, grid.equal_cells())),
            (POWER, "McNemar", partial(grid.power, count)),
        ]
        drawn = [
            (COVERAGE, "mean of 4 answers", partial(grid.four_answers, count)),
            (COVERAGE, "difference, with ½s", partial(changes, grid.HALF_CHANGE, half_changes)),
            (COVERAGE, "loss", partial(grid.loss_coverage, (1,) * count)),
            (SIZE, "flips, with ½s", partial(sizes, grid.HALF_CHANGE, grid.half_change_cells(equal=True))),
            (SIZE, "flips of losses", partial(grid.loss_size, count)),
            (SIZE, "Holm, one of 4 models", partial(grid.family_size, count)),
        ]
        found += [Part(table, what, str(count), figures, count, drawn=False) for table, what, figures in counted]
        found += [Part(table, what, str(count), figures, count) for table, what, figures in drawn]
    for name, clusters in CLUSTERS.items():
        in_clusters = [
            (COVERAGE, "share or reward", partial(grid.cluster_coverage, clusters)),
            (COVERAGE, "difference", partial(grid.cluster_changes, clusters)),
            (COVERAGE, "loss", partial(grid.loss_coverage, clusters)),
            (SIZE, "flips of clusters", partial(grid.cluster_size, clusters)),
        ]
        equal = sum(clusters) ** 2 / sum(each**2 for each in clusters)
        found += [Part(table, what, name, figures, equal) for table, what, figures in in_clusters]
    return found


if __name__ == "__main__":
    main()
