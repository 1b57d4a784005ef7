"""The grid over which toolkit-eval's statistics are checked: what can happen, and how likely it is.

Each function has the cells of one quantity. A cell is one truth, such as a share of 0.3, or 10 % discordant pairs. Its
figure is a probability: that an interval holds the true value, or that a test tells two models apart.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import product

import numpy as np
from numpy.random import Generator

from posttrain.base.intervals.paired import difference_interval
from posttrain.base.intervals.spread import Interval, clustered
from posttrain.evaluate.statistics.comparison import compare
from posttrain.evaluate.statistics.flips import flip_test
from posttrain.evaluate.statistics.scores import Scores
from posttrain.evaluate.statistics.smallest import LEVEL, smallest_difference
from posttrain.evaluate.statistics.unbounded import student_interval
from posttrain.evaluate.statistics.wilson import share_interval

Figures = dict[str, float]
"""A probability for each cell, by what the cell is."""
Probabilities = Sequence[float]
Cells = Mapping[str, Probabilities]
Counts = tuple[int, ...]
IntervalOf = Callable[[Sequence[float], Sequence[Hashable] | None], Interval | None]

SHARES = tuple(round(0.05 * step, 2) for step in range(1, 20))
FEW_SHARES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.8, 0.95)
DISCORDANT = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4)
UP = (0.5, 0.75, 1.0)
"""The share of discordant pairs that became better."""
ALIKE = (0.0, 0.1, 0.3, 0.6, 1.0)
"""The correlation of prompts in one cluster, or of answers to one prompt."""
HALVES = (0.1, 0.3, 0.6, 0.9, 1.0)
"""Rewards of ½ as a share of the most that the mean allows, or of the differences that are not 0."""
RIGHT, HALF, QUARTERS = (0.0, 1.0), (0.0, 0.5, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)
CHANGE, HALF_CHANGE = (-1.0, 0.0, 1.0), (-1.0, -0.5, 0.0, 0.5, 1.0)
_UNLIKELY = 1e-9
"""Outcomes with a smaller probability are left out."""


# What happens without clusters: how many prompts have each value.


def outcomes(prompts: int, chances: Probabilities, draws: int, chance: Generator) -> Iterator[tuple[float, Counts]]:
    """How many prompts have each value, with the probability of that: counted for up to three values, else drawn."""
    if len(chances) > 3:
        drawn, times = np.unique(chance.multinomial(prompts, chances, draws), axis=0, return_counts=True)
        yield from zip((times / draws).tolist(), map(tuple, drawn.tolist()), strict=True)
        return
    counts = _compositions(prompts, len(chances))
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, prompts + 1)))])
    each = np.log(np.maximum(chances, 1e-300))
    shares = np.exp(logs[prompts] - logs[counts].sum(axis=1) + counts @ each)
    likely = shares > _UNLIKELY
    yield from zip(shares[likely].tolist(), map(tuple, counts[likely].tolist()), strict=True)


@lru_cache
def _compositions(total: int, parts: int) -> np.ndarray:
    """All ways to write `total` as a sum of two or three counts, shape [ways, parts]."""
    first, second = (axis.ravel() for axis in np.meshgrid(np.arange(total + 1), np.arange(total + 1)))
    if parts == 2:
        return np.stack([np.arange(total + 1), total - np.arange(total + 1)], axis=1)
    fits = first + second <= total
    return np.stack([first[fits], second[fits], total - first[fits] - second[fits]], axis=1)


def _values(levels: Sequence[float], counts: Counts) -> list[float]:
    return [level for level, count in zip(levels, counts, strict=True) for _ in range(count)]


@cache
def _interval(of: IntervalOf, levels: Sequence[float], counts: Counts) -> Interval | None:
    return of(_values(levels, counts), None)


@cache
def _p_value(levels: Sequence[float], counts: Counts) -> float:
    return flip_test(_values(levels, counts)).p


def holds(interval: Interval | None, truth: float) -> bool:
    """Whether the interval has the true value, but for rounding."""
    return interval is not None and interval.low - 1e-9 <= truth <= interval.high + 1e-9


# The cells without clusters: the probabilities of each value.


def share_cells() -> Cells:
    """Right or wrong."""
    return {f"share {share}": (1 - share, share) for share in SHARES}


def half_cells() -> Cells:
    """Rewards of 0, ½ and 1."""
    found = {}
    for mean, halves in product(SHARES, HALVES):
        half = halves * 2 * min(mean, 1 - mean)
        found[f"mean {mean}, {half:.0%} are ½"] = (1 - mean - half / 2, half, mean - half / 2)
    return found


def four_answers(prompts: int, draws: int, chance: Generator) -> Figures:
    """Means of four answers, right or wrong."""
    found = {}
    for mean, alike in product(FEW_SHARES, ALIKE[:-1]):
        right = chance.binomial(4, cluster_means(mean, alike, draws, prompts, chance)) / 4
        held = [holds(share_interval(row, None), mean) for row in right.tolist()]
        found[f"mean {mean}, correlation {alike}"] = float(np.mean(held))
    return found


def change_cells() -> Cells:
    """Changes from wrong to right and back."""
    return {
        f"{changed:.0%} discordant, {up:.0%} of them up": (changed * (1 - up), 1 - changed, changed * up)
        for changed, up in product(DISCORDANT, UP)
    }


def equal_cells() -> Cells:
    """As many changes from wrong to right as back."""
    return {f"{changed:.0%} discordant": (changed / 2, 1 - changed, changed / 2) for changed in DISCORDANT}


def half_change_cells(*, equal: bool) -> Cells:
    """Changes by ½ or 1. With `equal`, only those whose mean is 0, also where gains and losses differ in size."""
    found = {}
    for changed, up, halves in product(DISCORDANT, UP[:1] if equal else UP, HALVES):
        sizes = (1 - halves, halves)
        down = tuple(changed * (1 - up) * size for size in sizes)
        rise = tuple(changed * up * size for size in reversed(sizes))
        found[f"{changed:.0%} discordant, {up:.0%} up, {halves:.0%} by ½"] = (*down, 1 - changed, *rise)
    for changed in DISCORDANT:
        name = f"{changed:.0%} discordant, twice as many rise by ½ as fall by 1"
        found[name] = (changed / 3, 0.0, 1 - changed, 2 * changed / 3, 0.0)
    return found


def coverage(
    of: IntervalOf,
    levels: Sequence[float],
    cells: Cells,
    prompts: int,
    draws: int,
    chance: Generator,
) -> Figures:
    """How often the interval holds the true mean."""
    found = {}
    for name, chances in cells.items():
        truth = float(np.dot(levels, chances))
        found[name] = sum(
            weight
            for weight, counts in outcomes(prompts, chances, draws, chance)
            if holds(_interval(of, levels, counts), truth)
        )
    return found


def size(levels: Sequence[float], cells: Cells, prompts: int, draws: int, chance: Generator) -> Figures:
    """How often two equal models are told apart."""
    return {
        name: sum(
            weight for weight, counts in outcomes(prompts, chances, draws, chance) if _p_value(levels, counts) <= LEVEL
        )
        for name, chances in cells.items()
    }


def power(prompts: int, draws: int, chance: Generator) -> Figures:
    """How often a change by the smallest difference that can be told is told."""
    found = {}
    for changed in (0.0, *DISCORDANT):
        each = round(changed * prompts / 2)
        seen = clustered(_values(CHANGE, (each, prompts - 2 * each, each)), None)
        smallest = smallest_difference(seen, 1, 1.0) or 1.0
        moved = max(2 * each / prompts, smallest)
        cell = {"": ((moved - smallest) / 2, 1 - moved, (moved + smallest) / 2)}
        found[f"{changed:.0%} discordant: {smallest:.1%}"] = size(CHANGE, cell, prompts, draws, chance)[""]
    return found


# Clusters, and values of any size: everything is drawn.


def cluster_means(mean: float, alike: float, draws: int, clusters: int, chance: Generator) -> np.ndarray:
    """The mean reward of each cluster, shape [draws, clusters]: beta-distributed, with correlation `alike`."""
    if alike == 0:
        return np.full((draws, clusters), mean)
    if alike == 1:
        return (chance.random((draws, clusters)) < mean).astype(float)
    return chance.beta(mean * (1 - alike) / alike, (1 - mean) * (1 - alike) / alike, (draws, clusters))


def cluster_coverage(sizes: Sequence[int], draws: int, chance: Generator) -> Figures:
    """Shares of right answers, and rewards of 0, ½ and 1 that are means of two."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = {}
    for mean, alike, answers in product(FEW_SHARES[:5], ALIKE, (1, 2)):
        means = cluster_means(mean, alike, draws, len(sizes), chance)[:, labels]
        rewards = chance.binomial(answers, means) / answers
        held = [holds(share_interval(row, labels.tolist()), mean) for row in rewards.tolist()]
        found[f"mean {mean}, correlation {alike}" + ", with ½s" * (answers - 1)] = float(np.mean(held))
    return found


def drawn_changes(
    chances: Probabilities, alike: float, sizes: Sequence[int], draws: int, chance: Generator
) -> np.ndarray:
    """Changes by 1, shape [draws, prompts], with chances of its own for each cluster, which Dirichlet distributes."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    if alike == 0:
        own = np.broadcast_to(chances, (draws, len(sizes), 3))
    elif alike == 1:
        own = chance.multinomial(1, chances, (draws, len(sizes)))
    else:
        parts = chance.standard_gamma(np.maximum(chances, 1e-12) * (1 - alike) / alike, (draws, len(sizes), 3))
        own = parts / np.maximum(parts.sum(axis=2, keepdims=True), 1e-300)
    at = chance.random((draws, len(labels)))
    down, up = own[:, labels, 0], own[:, labels, 2]
    return (at >= 1 - up).astype(float) - (at < down)


def cluster_changes(sizes: Sequence[int], draws: int, chance: Generator) -> Figures:
    """Mean differences over clusters, with changes by 1, and with two of three by ½."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = {}
    for changed, up, alike, halves in product((0.05, 0.1, 0.2, 0.4), UP, ALIKE, (0.0, 2 / 3)):
        changes = drawn_changes((changed * (1 - up), 1 - changed, changed * up), alike, sizes, draws, chance)
        rows = changes * np.where(chance.random(changes.shape) < halves, 0.5, 1.0)
        truth = changed * (2 * up - 1) * (1 - halves / 2)
        held = [holds(difference_interval(row, labels.tolist()), truth) for row in rows.tolist()]
        name = f"{changed:.0%} discordant, {up:.0%} up, correlation {alike}" + ", with ½s" * (halves > 0)
        found[name] = float(np.mean(held))
    return found


def cluster_size(sizes: Sequence[int], draws: int, chance: Generator) -> Figures:
    """How often equal models are told apart, with flips of whole clusters."""
    labels = np.repeat(np.arange(len(sizes)), sizes).tolist()
    found = {}
    for changed, alike in product((0.05, 0.1, 0.2, 0.4), ALIKE):
        rows = drawn_changes((changed / 2, 1 - changed, changed / 2), alike, sizes, draws, chance).tolist()
        told = [flip_test([each.total for each in clustered(row, labels)]).p <= LEVEL for row in rows]
        found[f"{changed:.0%} discordant, correlation {alike}"] = float(np.mean(told))
    return found


LOSSES: dict[str, tuple[Callable[[Generator, tuple[int, int]], np.ndarray], float]] = {
    "normal": (lambda chance, shape: chance.normal(size=shape), 0.0),
    "skewness 1": (lambda chance, shape: chance.gamma(4.0, size=shape), 4.0),
    "skewness 2": (lambda chance, shape: chance.exponential(size=shape), 1.0),
}


def loss_coverage(sizes: Sequence[int], draws: int, chance: Generator) -> Figures:
    """Mean losses of three shapes: normal, gamma and exponential."""
    single = max(sizes) == 1
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = {}
    for (name, (draw, mean)), alike in product(LOSSES.items(), ALIKE[:1] if single else ALIKE):
        common = draw(chance, (draws, len(sizes)))[:, labels] - mean
        own = draw(chance, (draws, len(labels))) - mean
        rows = np.sqrt(alike) * common + np.sqrt(1 - alike) * own
        held = [holds(student_interval(row, None if single else labels.tolist()), 0.0) for row in rows.tolist()]
        found[name if single else f"{name}, correlation {alike}"] = float(np.mean(held))
    return found


def loss_size(prompts: int, draws: int, chance: Generator) -> Figures:
    """How often equal models are told apart by random flips, with losses that differ in every prompt."""
    rows = chance.normal(size=(draws // 4, prompts)).tolist()
    return {"normal differences": float(np.mean([flip_test(row, seed).p <= LEVEL for seed, row in enumerate(rows)]))}


def family_size(prompts: int, draws: int, chance: Generator) -> Figures:
    """How often one or more of four models, all as good as the baseline, is told from it."""
    found = {}
    for alike in (0.1, 0.6):
        told = 0
        for means in cluster_means(0.5, alike, draws, prompts, chance):
            one, *others = (_scores(chance.binomial(1, means).tolist()) for _ in range(5))
            told += any(
                each.adjusted_p <= LEVEL for each in compare(dict(zip("abcd", others, strict=True)), one).values()
            )
        found[f"correlation {alike}"] = told / draws
    return found


def _scores(values: Sequence[float]) -> Scores:
    return Scores({str(place): float(value) for place, value in enumerate(values)}, 0)
