"""Which row of which data set fills slot s of optimizer step k, as a pure function of (stages, sizes, seed).

No state is kept, so a resumed run, another number of ranks and another micro-batch size all see the same rows.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from posttrain.data.curriculum.period import Period, integer_shares
from posttrain.data.curriculum.permutation import permute, round_keys
from posttrain.errors import ConfigError


@dataclass(frozen=True)
class Stage:
    """A weighted mix of data sets, from the end of the previous stage up to `until_step`."""

    name: str
    until_step: int
    """The first optimizer step after the stage, counted from the start of the run."""
    weights: Mapping[str, float]
    """Shares of the rows by data set, in any unit."""


class Draw(NamedTuple):
    """One row of training data; `epoch` is how often its data set was used up before."""

    dataset: str
    row: int
    epoch: int
    stage: str


@dataclass(frozen=True)
class _Placed:
    """A stage with its place in the run: its first step, and the rows drawn from each data set before it."""

    stage: Stage
    start: int
    period: Period
    drawn: Mapping[str, int]

    def rows_drawn(self, rows_per_step: int) -> dict[str, int]:
        return self.period.counts((self.stage.until_step - self.start) * rows_per_step)


class Curriculum:
    """Draw `rows_per_step` rows per optimizer step, over all ranks, from the stages in order.

    In every prefix of a stage each data set is within one row of its share (see `Period`). A data set is used up before
    it repeats, in a new order each epoch, and a later stage continues where an earlier one left off.
    """

    def __init__(self, stages: Sequence[Stage], sizes: Mapping[str, int], rows_per_step: int, seed: int) -> None:
        """`sizes`: how many rows each data set has.

        Raises:
            ConfigError: `rows_per_step` is below 1, the stages do not follow each other, or the weights of one are
                invalid or name a data set that is unknown or empty.
        """
        if rows_per_step < 1:
            raise ConfigError(f"a curriculum needs at least 1 row per optimizer step, not {rows_per_step}")
        _check_stages(stages, sizes)
        self.stages = tuple(stages)
        self.rows_per_step = rows_per_step
        self.seed = seed
        self.total_steps = stages[-1].until_step
        self.sizes = dict(sizes)
        self._ends = [stage.until_step for stage in stages]
        self._placed = _place(stages, rows_per_step)

    def draw(self, step: int, slot: int) -> Draw:
        """Return the row in `slot` of `step`, both counted from 0; IndexError if there is no such slot."""
        if not 0 <= slot < self.rows_per_step:
            raise IndexError(f"slot {slot} is not in range({self.rows_per_step})")
        placed = self._placed_at(step)
        dataset, earlier = placed.period.at((step - placed.start) * self.rows_per_step + slot)
        size = self.sizes[dataset]
        epoch, position = divmod(placed.drawn[dataset] + earlier, size)
        row = permute(position, size, round_keys(self.seed, dataset, epoch))
        return Draw(dataset, row, epoch, placed.stage.name)

    def step(self, step: int) -> list[Draw]:
        """Return all rows of an optimizer step, in slot order."""
        return [self.draw(step, slot) for slot in range(self.rows_per_step)]

    def draws_per_dataset(self, stage_index: int) -> dict[str, int]:
        """Return how many rows of each data set a stage draws."""
        return self._placed[stage_index].rows_drawn(self.rows_per_step)

    def drawn_rows(self, steps: int) -> dict[str, Sequence[int]]:
        """Return the rows of each data set that the first `steps` steps draw, each once and in no particular order."""
        counts = Counter[str]()
        for placed in self._placed:
            if placed.start < steps:
                counts.update(
                    placed.period.counts((min(placed.stage.until_step, steps) - placed.start) * self.rows_per_step)
                )
        return {dataset: self._first_rows(dataset, count) for dataset, count in counts.items()}

    def epochs_per_dataset(self) -> dict[str, float]:
        """Return how often the whole curriculum goes through each data set that it uses."""
        totals = Counter[str]()
        for placed in self._placed:
            totals.update(placed.rows_drawn(self.rows_per_step))
        return {dataset: rows / self.sizes[dataset] for dataset, rows in sorted(totals.items())}

    def _first_rows(self, dataset: str, count: int) -> Sequence[int]:
        size = self.sizes[dataset]
        if count >= size:  # a data set is used up before it repeats
            return range(size)
        keys = round_keys(self.seed, dataset, 0)
        return [permute(position, size, keys) for position in range(count)]

    def _placed_at(self, step: int) -> _Placed:
        if not 0 <= step < self.total_steps:
            raise IndexError(f"step {step} is not in range({self.total_steps})")
        return self._placed[bisect_right(self._ends, step)]


def _check_stages(stages: Sequence[Stage], sizes: Mapping[str, int]) -> None:
    if not stages:
        raise ConfigError("a curriculum needs at least one stage")
    names, end = set[str](), 0
    for stage in stages:
        if stage.name in names:
            raise ConfigError(f"stage {stage.name!r}: there are two stages with this name; rename one")
        if stage.until_step <= end:
            raise ConfigError(
                f"stage {stage.name!r}: until_step is {stage.until_step}, but the stage begins at {end}; "
                f"until_step counts from the start of the run, so raise it to {end + 1} or more"
            )
        for dataset, weight in stage.weights.items():
            if dataset not in sizes:
                known = ", ".join(sorted(sizes)) or "none"
                raise ConfigError(f"stage {stage.name!r}: there is no data set {dataset!r}; known: {known}")
            if weight and sizes[dataset] < 1:
                raise ConfigError(f"stage {stage.name!r}: the data set {dataset!r} has no rows to draw from")
        names.add(stage.name)
        end = stage.until_step


def _place(stages: Sequence[Stage], rows_per_step: int) -> list[_Placed]:
    placed: list[_Placed] = []
    drawn = {dataset: 0 for stage in stages for dataset in stage.weights}
    start = 0
    for stage in stages:
        try:
            period = Period(integer_shares(stage.weights))
        except ConfigError as error:
            raise ConfigError(f"stage {stage.name!r}: {error}") from error
        placed.append(_Placed(stage, start, period, dict(drawn)))
        for dataset, rows in placed[-1].rows_drawn(rows_per_step).items():
            drawn[dataset] += rows
        start = stage.until_step
    return placed
