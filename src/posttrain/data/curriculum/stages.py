"""The stages of a config as the curriculum takes them: with a step at which each ends, also those given in epochs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from posttrain.config.sections.datasets import StageConfig
from posttrain.data.curriculum.curriculum import Curriculum, Stage


def resolved_stages(stages: Sequence[StageConfig], sizes: Mapping[str, int], rows_per_step: int) -> list[Stage]:
    """All stages with their end steps; `sizes` are the numbers of training rows of all data sets.

    Raises:
        ConfigError: more epochs than steps can be counted.
    """
    resolved: list[Stage] = []
    for stage in stages:
        end = stage.until_step
        if end is None:
            end = (resolved[-1].until_step if resolved else 0) + stage.steps(sizes, rows_per_step)
        resolved.append(Stage(stage.name, end, stage.weights(sizes)))
    return resolved


def check_stages(stages: Sequence[StageConfig], datasets: Iterable[str]) -> set[str]:
    """Check the stages as far as possible before any file is read; return the data sets that they name.

    Raises:
        ConfigError: a stage ends before it begins, two have one name, or a data set is unknown.
    """
    sizes = dict.fromkeys(datasets, 1)  # stand for data not yet counted
    resolved = resolved_stages(stages, sizes, 1)
    if any(stage.epochs is not None for stage in stages):
        # Their length is known only once the data are counted; until then every stage counts as one step.
        resolved = [replace(stage, until_step=end) for end, stage in enumerate(resolved, start=1)]
    Curriculum(resolved, sizes, rows_per_step=1, seed=0)
    return {name for stage in resolved for name in stage.weights}


def epochs_in_steps(stages: Sequence[StageConfig], ends: Sequence[int], sizes: Mapping[str, int]) -> Iterator[str]:
    """A line for each stage given in epochs, whose ends are `ends`: how many rows these are, and its steps."""
    for number, (stage, end) in enumerate(zip(stages, ends, strict=True)):
        if stage.epochs is not None:
            rows = sum(sizes[name] for name, weight in stage.weights(sizes).items() if weight)
            start = ends[number - 1] if number else 0
            yield f"stage {stage.name!r}: {stage.epochs:g} epochs of {rows:,} rows are steps {start + 1} to {end}"
