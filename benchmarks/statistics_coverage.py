"""How often the intervals of toolkit-eval hold the true value, and how often its tests are wrong, over a grid.

python benchmarks/statistics_coverage.py [--draws N] [--only WORD] [--jobs N] [--output FILE]

Without clusters, values of two or three kinds are counted exactly: every outcome, with its probability. Everything else
is drawn with a fixed seed, --draws times per cell. Prints Markdown tables; --short is for a look at the first numbers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from zlib import crc32

import measuring
import statistics_grid as grid
from numpy.random import default_rng

from posttrain.base.intervals.paired import difference_interval
from posttrain.evaluate.statistics.wilson import share_interval

PROMPTS = (20, 100, 400)
CLUSTERS = {
    "100 in 20 × 5": (5,) * 20,
    "100 in 50 × 2": (2,) * 50,
    "400 in 20 × 20": (20,) * 20,
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
        drawn: whether the outcomes are drawn, rather than counted.
    """

    table: str
    what: str
    prompts: str
    figures: Callable[..., grid.Figures]
    drawn: bool = True

    def computed(self, draws: int) -> grid.Figures:
        """The figure of each cell, with random numbers of the part's own."""
        return self.figures(draws=draws, chance=default_rng(crc32(f"{self.table}{self.what}{self.prompts}".encode())))


def main() -> None:
    """Compute all parts, print and write."""
    parser = measuring.benchmark_parser(__doc__)
    parser.add_argument("--draws", type=int, default=4000, help="draws per cell, where outcomes are drawn")
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
        {"table": part.table, "what": part.what, "prompts": part.prompts, "cells": found}
        for part, found in zip(chosen, figures, strict=True)
    ]
    measuring.publish(numbers, markdown(chosen, figures), options.output)


def markdown(chosen: Sequence[Part], figures: Sequence[grid.Figures]) -> str:
    """A table for each kind of figure."""
    found = list(zip(chosen, figures, strict=True))
    tables = []
    for table, worst in ((COVERAGE, "lowest"), (SIZE, "highest"), (POWER, "lowest")):
        rows = [line(part, cells, max if worst == "highest" else min) for part, cells in found if part.table == table]
        if rows:
            head = [table, "prompts", "cells", "", "average", worst, "where"]
            tables.append(measuring.markdown_table(head, rows))
    for method, what in METHODS.items():
        covered = [cells for part, cells in found if part.table == COVERAGE and part.what in what]
        if covered:
            every = [each for cells in covered for each in cells.values()]
            lines = fmean(fmean(cells.values()) for cells in covered)
            tables.append(f"{method}: {len(every)} cells, average {fmean(every):.1%}, average of the lines {lines:.1%}")
    return "\n\n".join(tables)


def line(part: Part, cells: grid.Figures, worst: Callable[..., str]) -> list[str]:
    """A part's line of its table."""
    where = worst(cells, key=lambda name: cells[name])
    how = "drawn" if part.drawn else "exact"
    return [part.what, part.prompts, str(len(cells)), how, f"{fmean(cells.values()):.1%}", f"{cells[where]:.1%}", where]


def parts() -> list[Part]:
    """All lines, in the order of the tables."""
    found = []
    for count in PROMPTS:
        shares = partial(grid.coverage, share_interval, prompts=count)
        changes = partial(grid.coverage, difference_interval, prompts=count)
        sizes = partial(grid.size, prompts=count)
        half_changes = grid.half_change_cells(equal=False)
        plain = [
            Part(COVERAGE, "share", "", partial(shares, grid.RIGHT, grid.share_cells()), drawn=False),
            Part(COVERAGE, "reward 0, ½, 1", "", partial(shares, grid.HALF, grid.half_cells()), drawn=False),
            Part(COVERAGE, "mean of 4 answers", "", partial(grid.four_answers, count)),
            Part(COVERAGE, "difference", "", partial(changes, grid.CHANGE, grid.change_cells()), drawn=False),
            Part(COVERAGE, "difference, with ½s", "", partial(changes, grid.HALF_CHANGE, half_changes)),
            Part(COVERAGE, "loss", "", partial(grid.loss_coverage, (1,) * count)),
            Part(SIZE, "McNemar", "", partial(sizes, grid.CHANGE, grid.equal_cells()), drawn=False),
            Part(SIZE, "flips, with ½s", "", partial(sizes, grid.HALF_CHANGE, grid.half_change_cells(equal=True))),
            Part(SIZE, "flips of losses", "", partial(grid.loss_size, count)),
            Part(SIZE, "Holm, one of 4 models", "", partial(grid.family_size, count)),
            Part(POWER, "McNemar", "", partial(grid.power, count), drawn=False),
        ]
        found += [Part(each.table, each.what, str(count), each.figures, each.drawn) for each in plain]
    for name, clusters in CLUSTERS.items():
        found += [
            Part(COVERAGE, "share or reward", name, partial(grid.cluster_coverage, clusters)),
            Part(COVERAGE, "difference", name, partial(grid.cluster_changes, clusters)),
            Part(COVERAGE, "loss", name, partial(grid.loss_coverage, clusters)),
            Part(SIZE, "flips of clusters", name, partial(grid.cluster_size, clusters)),
        ]
    return found


if __name__ == "__main__":
    main()
