"""What is answered about one completion."""

from posttrain.dataserver.grading.cache import Graded
from posttrain.dataserver.grading.rewards import GradingPlan, Judgement
from posttrain.dataserver.schemas import Component, GradeResult


def graded_result(item_id: str, plan: GradingPlan, graded: Graded) -> GradeResult:
    """The reward, or why there is none, with what each grader said."""
    return GradeResult(
        item_id=item_id,
        status=graded.reward.status,
        reward=graded.reward.value,
        reason=graded.reward.reason,
        components={name: _component(plan, name, judgement) for name, judgement in graded.judgements.items()},
    )


def deadline_result(item_id: str) -> GradeResult:
    """Not graded within the time that a request has; asking again may find it done."""
    reason = "deadline: the graders were not done within limits.grade_seconds"
    return GradeResult(item_id=item_id, status="abstain", reward=None, reason=reason, components={})


def error_result(item_id: str, reason: str) -> GradeResult:
    """Not graded, because of the item itself."""
    return GradeResult(item_id=item_id, status="error", reward=None, reason=reason, components={})


def _component(plan: GradingPlan, name: str, judgement: Judgement) -> Component:
    return Component(
        score=judgement.score,
        weight=plan.weights.get(name),
        status=judgement.status,
        ms=round(judgement.milliseconds, 3),
        detail=judgement.detail,
    )
