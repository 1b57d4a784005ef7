"""Turn a request item into a task for its graders, and their scores into its result."""

from collections.abc import Mapping
from typing import NamedTuple

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.names import find_grader
from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.graders.base import Grader
from posttrain.dataserver.graders.remote import RemoteGrader
from posttrain.dataserver.graders.text.completions import GradeInput
from posttrain.dataserver.grading.cache import Graded, Question
from posttrain.dataserver.grading.rewards import GradingPlan
from posttrain.dataserver.grading.worker import Task
from posttrain.dataserver.schemas import Component, GradeItem, GradeResult


class _NamedPlan(NamedTuple):
    name: str
    plan: GradingPlan
    local_graders: tuple[str, ...]
    """Graders that run in the grading processes."""


class Questions:
    """Knows which graders judge each data set in each stage."""

    def __init__(self, config: DataserverConfig, graders: Mapping[str, Grader]) -> None:
        def named(name: str, plan: GradingPlan) -> _NamedPlan:
            local = (each for each in plan.graders if not isinstance(graders[each], RemoteGrader))
            return _NamedPlan(name, plan, tuple(local))

        self._tags = {name: dataset.reasoning for name, dataset in config.datasets.items()}
        self._own_plans = {name: named("", own_plan(config, name)) for name in config.datasets}
        self._stage_plans = [dict(self._own_plans) for _ in config.stages]
        for index, plans in enumerate(self._stage_plans):
            for name, own in self._own_plans.items():
                if (plan := stage_plan(config, index, name)) != own.plan:
                    plans[name] = named(f"stage {index}", plan)

    def question(self, target: Target, stage_index: int, item: GradeItem, digest: str) -> Question:
        """The question that asks for the reward of an item's completion in a stage of the curriculum."""
        # Held-out rows are judged the same way in all stages, so that their rewards can be compared.
        plans = self._own_plans if target.is_held_out else self._stage_plans[stage_index]
        plan_name, plan, local_graders = plans[target.dataset]
        given = GradeInput(
            completion=item.completion,
            answer=None,
            gold=target.gold,
            record=target.row.record,
            prompt=target.prompt,
            completion_tokens=item.completion_tokens,
            truncated=item.truncated,
            tags=self._tags[target.dataset],
        )
        return Question(item.sample_id, plan_name, plan, Task(local_graders, given), digest)


def graders_of(config: DataserverConfig, dataset: str) -> tuple[str, ...]:
    """Every grader that may judge a data set in any stage."""
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
    """How a data set is graded unless a stage overrides it; validation rows are always graded this way."""
    graded = config.datasets[dataset]
    return GradingPlan.make(graded.graders, graded.gates, graded.on_missing_score)


def stage_plan(config: DataserverConfig, stage_index: int, dataset: str) -> GradingPlan:
    """How a data set's training rows are graded in a stage."""
    graded = config.datasets[dataset]
    override = config.stages[stage_index].grading.get(dataset)
    weights = graded.graders if override is None or override.graders is None else override.graders
    gates = graded.gates if override is None or override.gates is None else override.gates
    return GradingPlan.make(weights, gates, graded.on_missing_score)


def graded_result(item_id: str, plan: GradingPlan, graded: Graded) -> GradeResult:
    """The result of a graded completion: its reward, or why there is none, and what each grader said."""
    return GradeResult(
        item_id=item_id,
        status=graded.reward.status,
        reward=graded.reward.value,
        reason=graded.reward.reason,
        components={
            name: Component(
                score=judgement.score,
                weight=plan.weights.get(name),
                status=judgement.status,
                ms=round(judgement.milliseconds, 3),
                detail=judgement.detail,
            )
            for name, judgement in graded.judgements.items()
        },
    )


def deadline_result(item_id: str) -> GradeResult:
    """The result of an item that was not graded in time; a repeated request may find it done."""
    reason = "deadline: the graders did not finish within limits.grade_seconds"
    return GradeResult(item_id=item_id, status="abstain", reward=None, reason=reason, components={})


def error_result(item_id: str, reason: str) -> GradeResult:
    """The result of an item that cannot be graded because the item itself is wrong."""
    return GradeResult(item_id=item_id, status="error", reward=None, reason=reason, components={})
