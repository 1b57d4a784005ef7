"""From a completion and what it answers to a question for the graders."""

from toolkit.dataserver.graders.remote import RemoteGrader
from toolkit.dataserver.grading import Question
from toolkit.dataserver.loaded import Loaded
from toolkit.dataserver.plans import own_plan, stage_plan
from toolkit.dataserver.samples import Target
from toolkit.dataserver.schemas import GradeItem
from toolkit.dataserver.workers import Task


class Questions:
    """Knows which graders judge which data set at which iteration."""

    def __init__(self, loaded: Loaded) -> None:
        config = loaded.config
        self._remote = frozenset(name for name, grader in loaded.graders.items() if isinstance(grader, RemoteGrader))
        self._own_plans = {name: own_plan(config, name) for name in config.datasets}
        self._stage_plans = [
            {name: stage_plan(config, index, name) for name in config.datasets} for index in range(len(config.stages))
        ]

    def question(self, target: Target, stage_index: int, item: GradeItem) -> Question:
        """The question how good the item's completion is, in a stage of the curriculum."""
        own = self._own_plans[target.dataset]
        # Held-out rows are judged alike in all stages, so that their rewards can be compared.
        plan = own if target.is_held_out else self._stage_plans[stage_index][target.dataset]
        return Question(
            sample_id=item.sample_id,
            plan_name="" if plan == own else f"stage {stage_index}",
            plan=plan,
            task=Task(
                dataset=target.dataset,
                graders=tuple(name for name in plan.graders if name not in self._remote),
                completion=item.completion,
                gold=target.gold,
                record=target.row.record,
                prompt=target.prompt,
                completion_tokens=item.completion_tokens,
                truncated=item.truncated,
            ),
        )
