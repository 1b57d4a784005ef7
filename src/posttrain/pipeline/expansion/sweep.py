"""One step trained with several settings and seeds, of which the best model is taken."""

from collections.abc import Mapping
from itertools import product

from pydantic import Field, JsonValue

from posttrain.base.files import described_hash
from posttrain.config.strict import ConfigPath, StrictModel
from posttrain.config.values import OneLine
from posttrain.pipeline.steps.base import StepConfig
from posttrain.pipeline.steps.choose import Cell, ChooseStep
from posttrain.pipeline.steps.eval import EvalStep
from posttrain.pipeline.steps.training import TrainingStep

_SEED = "training.seed"
_LONGEST = 24
"""Characters of a value in a name."""


class MeasuredByConfig(StrictModel):
    """What the settings are compared by: validation rows, which no other evaluation may use."""

    config: ConfigPath
    """A config of `toolkit-eval`."""

    task: OneLine
    """One of its tasks."""

    measure: OneLine | None = None
    """The measure of the task; its first one by default."""


class SweepConfig(StrictModel):
    """Train one step with several settings, and take the best model."""

    step: OneLine
    """The step; whatever starts from it starts from the best of its models."""

    grid: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Values of keys of its config, such as `training.learning_rate: [1e-4, 3e-4]`; all combinations are trained."""

    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    """Values of `training.seed`; each combination is trained with each. With one seed it is not known how much of a
    difference is chance."""

    choose: MeasuredByConfig
    """What the settings are compared by."""


def with_sweep(steps: Mapping[str, StepConfig], sweep: SweepConfig) -> dict[str, StepConfig]:
    """The steps with one for each combination and seed, an evaluation of these, and a choice in the step's place.

    Raises:
        ValueError: the step is not there or trains nothing, or there is nothing to choose from.
    """
    step = steps.get(sweep.step)
    if not isinstance(step, TrainingStep):
        what = "there is no such step" if step is None else "it trains no model"
        raise ValueError(f"sweep.step: {sweep.step}: {what}")
    if _SEED in sweep.grid:
        raise ValueError(f"sweep.grid: {_SEED} is set by `seeds`")
    every = _cells(sweep)
    cells = {cell_name(sweep.step, cell): cell for cell in every}
    if len(cells) < len(every):
        raise ValueError("sweep: a value or a seed is there twice")
    if len(cells) < 2:
        raise ValueError("sweep: there is one combination, so there is nothing to choose from")
    found: dict[str, StepConfig] = {}
    for name, each in steps.items():
        if name != sweep.step:
            found[name] = each
            continue
        for cell, values in cells.items():
            settings = {**step.set, **values.settings, _SEED: values.seed}
            found[cell] = step.model_copy(update={"set": settings})
        scores = f"{name}.scores"
        models = {cell: cell for cell in cells}
        choose = {"cells": cells, "task": sweep.choose.task, "measure": sweep.choose.measure}
        found[scores] = EvalStep(run="eval", config=sweep.choose.config, models=models, enabled=step.enabled)
        found[name] = ChooseStep(run="choose", of=scores, **choose, enabled=step.enabled)
    return found


def _cells(sweep: SweepConfig) -> list[Cell]:
    combinations = [dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())]
    return [Cell(settings=settings, seed=seed) for settings in combinations for seed in sweep.seeds]


def cell_name(step: str, cell: Cell) -> str:
    """The name of a cell, such as `sft[learning_rate=3e-4,seed=1]`; also that of its folder."""
    short = [key.rsplit(".", 1)[-1] for key in cell.settings]
    keys = short if len({*short}) == len(short) else list(cell.settings)
    values = [*zip(keys, map(_shown, cell.settings.values()), strict=True), ("seed", cell.seed)]
    inner = ",".join(f"{key}={value}" for key, value in values)
    return f"{step}[{inner}]".replace("/", "-")


def _shown(value: JsonValue) -> str:
    """A value, or a hash of one that is too long for a name."""
    text = str(value)
    return text if len(text) <= _LONGEST else described_hash({"value": value})[:8]
