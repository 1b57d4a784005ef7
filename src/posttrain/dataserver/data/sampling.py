"""Choose the rows that an iteration asks, as a pure function of (config, data, iteration, offset, slot)."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from posttrain.data.curriculum.curriculum import Curriculum
from posttrain.data.splits import by_rank, held_out_rows
from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.data.dataset_rows import Indices, Rows
from posttrain.dataserver.schemas import Split
from posttrain.errors import ConfigError, DataError

# Iterations past the last stage keep its mix, up to this one.
_LAST_ITERATION = 2**40


@dataclass(frozen=True)
class Sides:
    """The training rows of a data set, in ascending order, and its held-out rows, in the order they are asked in."""

    train: Indices | range
    validation: Indices


@dataclass(frozen=True, slots=True)
class Slot:
    """One row that an iteration asks; `index` is its number in the data set."""

    slot: int
    dataset: str
    index: int


def split_rows(config: DataserverConfig, datasets: Mapping[str, Rows]) -> dict[str, Sides]:
    """The training and held-out rows of each data set.

    Raises:
        DataError: nothing can be held out; one message for all data sets.
    """
    sides: dict[str, Sides] = {}
    problems: list[str] = []
    for name, rows in datasets.items():
        fraction = config.datasets[name].validation_fraction
        if fraction is None:
            sides[name] = Sides(range(len(rows)), np.arange(0))
            continue
        try:
            contents = rows.contents()
            train, held_out = held_out_rows(contents, fraction, config.seed, name)
            # In hash order, so that a part of them is not a contiguous stretch of the file, which may be sorted.
            sides[name] = Sides(train, held_out[by_rank(contents[held_out], config.seed)])
        except DataError:
            problems.append(
                f"datasets.{name}.validation_fraction: all {len(rows)} rows have the same prompt, so none can be held "
                "out; remove this option"
            )
    if problems:
        raise DataError("\n".join(problems))
    return sides


def _in_proportion(rows: Mapping[str, Indices]) -> list[tuple[str, int]]:
    """All rows, in order within each data set, mixed so that any prefix is in proportion to the data sets' sizes."""
    # Row i of n is placed at (i + 1/2) / n; ties go to the data set named first.
    placed = [
        ((2 * i + 1) / (2 * len(each)), number, name, index)
        for number, (name, each) in enumerate(rows.items())
        for i, index in enumerate(each.tolist())
    ]
    return [(name, index) for _, _, name, index in sorted(placed)]


class Sampler:
    """Draws from the curriculum.

    An iteration has `prompts_per_iteration` slots. Only multiples of `iteration_stride` are drawn, so that a trainer
    that uses its rollouts in several optimizer steps skips no draw; see docs/dataserver.md.
    """

    def __init__(self, config: DataserverConfig, sides: Mapping[str, Sides]) -> None:
        self._config = config
        self._sides = sides
        stages = config.curriculum_stages()
        sizes = {name: len(side.train) for name, side in sides.items()}
        self._planned = Curriculum(stages, sizes, config.prompts_per_iteration, config.seed)
        stages[-1] = dataclasses.replace(stages[-1], until_step=max(_LAST_ITERATION, stages[-1].until_step))
        self._curriculum = Curriculum(stages, sizes, config.prompts_per_iteration, config.seed)
        self._validation = _in_proportion({name: side.validation for name, side in sides.items()})

    @property
    def validation_size(self) -> int:
        """Number of rows held out, over all data sets."""
        return len(self._validation)

    def draws_per_dataset(self, stage_index: int) -> dict[str, int]:
        """Number of prompts that a stage asks from each data set."""
        return self._planned.draws_per_dataset(stage_index)

    def stage_index(self, iteration: int) -> int:
        """The stage of an iteration; past the last stage, the last."""
        stages = self._config.stages
        return next((i for i, stage in enumerate(stages) if iteration < stage.end), len(stages) - 1)

    def slots(self, iteration: int, offset: int, batch_size: int, split: Split) -> list[Slot]:
        """The rows in slots offset … offset + batch_size − 1.

        Raises:
            ConfigError: the slots do not exist, or nothing is drawn at that iteration.
        """
        self.require_slots(iteration, offset, batch_size, split)
        if split == "validation":
            return [Slot(slot, *self._validation[slot]) for slot in range(offset, offset + batch_size)]
        return [self._draw(iteration, slot) for slot in range(offset, offset + batch_size)]

    def require_slots(self, iteration: int, offset: int, batch_size: int, split: Split) -> None:
        """Raise ConfigError unless these slots exist, as `slots` does."""
        size = self.validation_size if split == "validation" else self._config.prompts_per_iteration
        if offset + batch_size > size:
            where = "the validation split has" if split == "validation" else "an iteration has (prompts_per_iteration)"
            raise ConfigError(f"offset {offset} + batch_size {batch_size} is more than the {size} prompts that {where}")
        if split == "train":
            self._require_drawn(iteration)

    def require_training_slots(self, iteration: int, slots: Sequence[int]) -> None:
        """Raise ConfigError unless all these slots exist in a training iteration, and something is drawn at it."""
        size = self._config.prompts_per_iteration
        if max(slots) >= size:
            raise ConfigError(f"there is no slot {max(slots)}: an iteration has {size} prompts (prompts_per_iteration)")
        self._require_drawn(iteration)

    def _require_drawn(self, iteration: int) -> None:
        stride, end = self._config.iteration_stride, self._config.total_iterations
        if iteration % stride:
            raise ConfigError(f"iteration {iteration} is not drawn: only multiples of iteration_stride {stride} are")
        if iteration >= end and (iteration >= _LAST_ITERATION or self._config.after_last_stage == "refuse"):
            raise ConfigError(f"iteration {iteration} is beyond the last stage, which ends at {end}")

    def _draw(self, iteration: int, slot: int) -> Slot:
        draw = self._curriculum.draw(iteration // self._config.iteration_stride, slot)
        return Slot(slot, draw.dataset, int(self._sides[draw.dataset].train[draw.row]))
