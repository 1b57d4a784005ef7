"""Which grading plan holds for a data set at an iteration."""

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.names import find_grader
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.grading.rewards import GradingPlan


def graders_of(config: DataserverConfig, dataset: str) -> tuple[str, ...]:
    """Every grader that may judge a data set, in some stage."""
    graded = config.datasets[dataset]
    names = dict.fromkeys((*graded.graders, *graded.gates))
    for stage in config.stages:
        override = stage.grading.get(dataset)
        if override is not None:
            names.update(dict.fromkeys((*(override.graders or ()), *(override.gates or ()))))
    return tuple(names)


def graders_in_use(config: DataserverConfig) -> dict[str, Grader]:
    """Every grader that a data set or a stage names, by name."""
    names = dict.fromkeys(name for dataset in config.datasets for name in graders_of(config, dataset))
    return {name: find_grader(name, config.graders) for name in names}


def own_plan(config: DataserverConfig, dataset: str) -> GradingPlan:
    """How a data set is graded where no stage says otherwise, and always for its validation rows."""
    graded = config.datasets[dataset]
    return GradingPlan.make(graded.graders, graded.gates, graded.on_missing_score)


def stage_plan(config: DataserverConfig, stage_index: int, dataset: str) -> GradingPlan:
    """How a data set's training rows are graded in a stage."""
    graded = config.datasets[dataset]
    override = config.stages[stage_index].grading.get(dataset)
    weights = graded.graders if override is None or override.graders is None else override.graders
    gates = graded.gates if override is None or override.gates is None else override.gates
    return GradingPlan.make(weights, gates, graded.on_missing_score)
