"""From a completion and what it answers to a question for the graders."""

from typing import NamedTuple

from posttrain.dataserver.data.samples import Target
from posttrain.dataserver.graders.remote import RemoteGrader
from posttrain.dataserver.grading.cache import Question
from posttrain.dataserver.grading.grading_plans import own_plan, stage_plan
from posttrain.dataserver.grading.rewards import GradingPlan
from posttrain.dataserver.grading.worker import Task
from posttrain.dataserver.runtime import Loaded
from posttrain.dataserver.schemas import GradeItem


class _NamedPlan(NamedTuple):
    name: str
    plan: GradingPlan
    local_graders: tuple[str, ...]
    """Those that the grading processes ask."""


class Questions:
    """Knows which graders judge which data set at which iteration."""

    def __init__(self, loaded: Loaded) -> None:
        config = loaded.config
        remote = frozenset(name for name, grader in loaded.graders.items() if isinstance(grader, RemoteGrader))

        def named(name: str, plan: GradingPlan) -> _NamedPlan:
            return _NamedPlan(name, plan, tuple(grader for grader in plan.graders if grader not in remote))

        self._own_plans = {name: named("", own_plan(config, name)) for name in config.datasets}
        self._stage_plans = [dict(self._own_plans) for _ in config.stages]
        for index, plans in enumerate(self._stage_plans):
            for name, own in self._own_plans.items():
                if (plan := stage_plan(config, index, name)) != own.plan:
                    plans[name] = named(f"stage {index}", plan)

    def question(self, target: Target, stage_index: int, item: GradeItem, digest: str) -> Question:
        """The question how good the item's completion is, in a stage of the curriculum."""
        # Held-out rows are judged alike in all stages, so that their rewards can be compared.
        plans = self._own_plans if target.is_held_out else self._stage_plans[stage_index]
        plan_name, plan, local_graders = plans[target.dataset]
        task = Task(
            target.dataset,
            local_graders,
            item.completion,
            target.gold,
            target.row.record,
            target.prompt,
            item.completion_tokens,
            item.truncated,
        )
        return Question(item.sample_id, plan_name, plan, task, digest)
