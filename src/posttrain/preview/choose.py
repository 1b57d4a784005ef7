"""Choose the rows to show: the extreme ones, where mistakes in data show first, and one of each data set."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.base.text import counted
from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.errors import ConfigError
from posttrain.preview.rows import PreparedRows


@dataclass(frozen=True)
class Pick:
    """A row and the reasons to show it."""

    dataset: str
    row: int
    why: str


def choose(datasets: Mapping[str, PreparedRows], curriculum: Curriculum, worst: int, stage: str | None) -> list[Pick]:
    """The `worst` longest, most cut and least trained rows, and the first row drawn of each data set.

    With `stage`, only of the data sets in it. A row that is chosen twice is shown once, with both reasons.
    """
    used = datasets_of(curriculum, stage)
    rows = {name: datasets[name] for name in used}
    lost = {name: each.lost() for name, each in rows.items()}
    picks = [
        *_most(rows, worst, {name: each.lengths for name, each in rows.items()}, "longest: {}", 1),
        *_most_cut(lost, worst),
        *_most(rows, worst, {name: each.trained for name, each in rows.items()}, "least trained: {}", -1),
        *_first_drawn(curriculum, used, stage),
    ]
    return list(_merged(picks))


def datasets_of(curriculum: Curriculum, stage: str | None) -> list[str]:
    """The data sets that a stage draws, or that any stage draws; ConfigError if there is no such stage."""
    stages = [each for each in curriculum.stages if stage in (None, each.name)]
    if not stages:
        known = ", ".join(each.name for each in curriculum.stages)
        raise ConfigError(f"--stage {stage}: there is no such stage; there are: {known}")
    return list(dict.fromkeys(name for each in stages for name, weight in each.weights.items() if weight))


def first_steps(curriculum: Curriculum, stage: str | None, count: int) -> Iterator[int]:
    """The first `count` optimizer steps of each stage, from 0."""
    start = 0
    for each in curriculum.stages:
        if stage in (None, each.name):
            yield from range(start, min(start + count, each.until_step))
        start = each.until_step


def _most(
    rows: Mapping[str, PreparedRows], count: int, values: Mapping[str, np.ndarray], why: str, sign: int
) -> Iterator[Pick]:
    """The rows with the largest values times `sign`; of equal ones the first."""
    found = []
    for name in rows:
        order = np.argsort(-sign * values[name], kind="stable")[:count]
        found += [(-sign * int(values[name][row]), name, int(row)) for row in order]
    for value, name, row in sorted(found, key=lambda each: each[0])[:count]:
        yield Pick(name, row, why.format(counted(abs(value), "token")))


def _most_cut(lost: Mapping[str, Mapping[int, int]], count: int) -> Iterator[Pick]:
    found = [(-tokens, name, row) for name, rows in lost.items() for row, tokens in rows.items()]
    for tokens, name, row in sorted(found)[:count]:
        yield Pick(name, row, f"most cut: {counted(-tokens, 'token')}")


def _first_drawn(curriculum: Curriculum, used: Sequence[str], stage: str | None) -> Iterator[Pick]:
    left = set(used)
    for step in _steps(curriculum, stage):
        for draw in curriculum.step(step):
            if draw.dataset in left:
                left.remove(draw.dataset)
                yield Pick(draw.dataset, draw.row, f"first of {draw.dataset}, in step {step + 1}")
        if not left:
            return


def _steps(curriculum: Curriculum, stage: str | None) -> Iterator[int]:
    start = 0
    for each in curriculum.stages:
        if stage in (None, each.name):
            yield from range(start, each.until_step)
        start = each.until_step


def _merged(picks: Iterable[Pick]) -> Iterator[Pick]:
    reasons: dict[tuple[str, int], list[str]] = {}
    for pick in picks:
        reasons.setdefault((pick.dataset, pick.row), []).append(pick.why)
    for (dataset, row), why in reasons.items():
        yield Pick(dataset, row, "; ".join(why))
