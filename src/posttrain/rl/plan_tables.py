"""The tables of `toolkit-rl-train --dry-run`."""

from rich import box
from rich.table import Table

from posttrain.dataserver.schemas import Meta, StageMeta
from posttrain.rl.config.rl import RLConfig
from posttrain.rl.presets import PRESETS, resolve_objective
from posttrain.rl.schedule import RolloutSchedule

_SHOWN_GENERATIONS = 4


def objective_table(config: RLConfig) -> Table:
    """Every field of the objective, and where the config replaces the preset's value."""
    table = _table("Objective", "field", "value", "", right=())
    preset = PRESETS[config.algorithm].objective.fields()
    given = {name for name, value in config.objective.model_dump().items() if value is not None}
    for name, value in resolve_objective(config.algorithm, config.objective).fields().items():
        origin = ""
        if name in given:
            origin = f"set in objective; {config.algorithm} has {_worded(preset[name])}"
        elif value != preset[name]:
            origin = f"goes with epsilon; {config.algorithm} has {_worded(preset[name])}"
        table.add_row(name, _worded(value), origin)
    return table


def generation_table(schedule: RolloutSchedule) -> Table:
    """The first generations: when each is made, and the steps that it serves."""
    columns = ("generation", "made at step", "serves steps", "asks iteration")
    table = _table("The first generations", *columns, right=columns)
    for generation in range(_SHOWN_GENERATIONS):
        iteration = schedule.iteration_of(generation)
        served = _span(iteration + 1, iteration + schedule.iteration_stride)
        table.add_row(str(generation + 1), str(iteration + 1), served, str(iteration))
    return table


def stage_table(meta: Meta, max_steps: int) -> Table:
    """The dataserver's curriculum: each stage's steps, and the share and the reward of each data set in it."""
    table = _table("Curriculum", "stage", "steps", "data set", "share", "reward", right=("steps", "share"))
    for stage in meta.stages:
        steps = _span(stage.from_iteration + 1, stage.until_iteration)
        mixed = [(name, share) for name, share in stage.mix.items() if share]
        for first, (dataset, share) in enumerate(mixed):
            head = ("", "") if first else (stage.name, steps)
            table.add_row(*head, dataset, f"{share:.1%}", _formula(stage, dataset))
    if max_steps < meta.total_iterations:
        table.caption = f"training.max_steps stops at step {max_steps}"
    elif max_steps > meta.total_iterations:
        table.caption = f"training.max_steps goes on with the last stage's mix until step {max_steps}"
    return table


def _table(title: str, *columns: str, right: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left")
    return table


def _worded(value: object) -> str:
    """A value as a config has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _formula(stage: StageMeta, dataset: str) -> str:
    """The reward as a sum of weighted scores, times its gates."""
    terms = " + ".join(f"{weight:.3g} {name}" for name, weight in stage.graders[dataset].items())
    gates = "".join(f" × {name}" for name in stage.gates[dataset])
    return f"({terms}){gates}" if gates else terms
