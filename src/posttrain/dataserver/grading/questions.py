"""Turn a request item into a task for its graders, and their scores into its result."""

from collections.abc import Mapping
from typing import NamedTuple

from posttrain.dataserver.config.dataserver import DataserverConfig
from posttrain.dataserver.config.datasets import GradedDataset, GradingOverride, OnMissingScore, TaskGrading
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
    """Knows which graders judge each data set, and each of its tasks, in each stage."""

    def __init__(self, config: DataserverConfig, graders: Mapping[str, Grader]) -> None:
        def named(name: str, plan: GradingPlan) -> _NamedPlan:
            local = (each for each in plan.graders if not isinstance(graders[each], RemoteGrader))
            return _NamedPlan(name, plan, tuple(local))

        self._tags = {name: dataset.reasoning for name, dataset in config.datasets.items()}
        kinds = [(name, task) for name in config.datasets for task in tasks_of(config, name)]
        self._own_plans = {kind: named("", own_plan(config, *kind)) for kind in kinds}
        self._stage_plans = [dict(self._own_plans) for _ in config.stages]
        for index, plans in enumerate(self._stage_plans):
            for kind, own in self._own_plans.items():
                if (plan := stage_plan(config, index, *kind)) != own.plan:
                    plans[kind] = named(f"stage {index}", plan)

    def question(self, target: Target, stage_index: int, item: GradeItem, digest: str) -> Question:
        """The question that asks for the reward of an item's completion in a stage of the curriculum."""
        # Held-out rows are judged the same way in all stages, so that their rewards can be compared.
        plans = self._own_plans if target.is_held_out else self._stage_plans[stage_index]
        plan_name, plan, local_graders = plans[target.dataset, target.task]
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


def tasks_of(config: DataserverConfig, dataset: str) -> tuple[str | None, ...]:
    """The tasks of a data set's rows; only None if it has none."""
    return tuple(config.datasets[dataset].grading_by_task) or (None,)


def graders_of(config: DataserverConfig, dataset: str, task: str | None = None) -> tuple[str, ...]:
    """Every grader that may judge the rows of a data set (and of that task) in any stage."""
    plans = [stage_plan(config, index, dataset, task) for index in range(len(config.stages))]
    return tuple(dict.fromkeys(name for plan in (own_plan(config, dataset, task), *plans) for name in plan.graders))


def graders_in_use(config: DataserverConfig) -> dict[str, Grader]:
    """Every grader that may judge a row, by name."""
    kinds = [(name, task) for name in config.datasets for task in tasks_of(config, name)]
    names = dict.fromkeys(grader for kind in kinds for grader in graders_of(config, *kind))
    return {name: find_grader(name, config.graders) for name in names}


def own_plan(config: DataserverConfig, dataset: str, task: str | None = None) -> GradingPlan:
    """How a data set is graded unless a stage overrides it; validation rows are always graded this way."""
    graded = config.datasets[dataset]
    return _plan(graded.on_missing_score, graded.grading_by_task.get(task or ""), graded)


def stage_plan(config: DataserverConfig, stage_index: int, dataset: str, task: str | None = None) -> GradingPlan:
    """How a data set's training rows are graded in a stage."""
    graded = config.datasets[dataset]
    override = config.stages[stage_index].grading.get(dataset) or GradingOverride()
    named_in = (override.tasks.get(task or ""), override, graded.grading_by_task.get(task or ""), graded)
    return _plan(graded.on_missing_score, *named_in)


def _plan(
    on_missing_score: OnMissingScore, *named_in: GradedDataset | GradingOverride | TaskGrading | None
) -> GradingPlan:
    """The plan with the graders of the first section that names some, and the gates of the first that names some."""
    sections = [section for section in named_in if section is not None]
    weights = next((section.graders for section in sections if section.graders is not None), {})
    gates = next((section.gates for section in sections if section.gates is not None), ())
    return GradingPlan.make(weights, gates, on_missing_score)


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
