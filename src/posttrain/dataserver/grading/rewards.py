"""Combine the scores of several graders into one reward; a missing score is never a 0."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import fsum, prod
from typing import NamedTuple

from posttrain.dataserver.config.datasets import OnMissingScore
from posttrain.dataserver.schemas import Status


class Judgement(NamedTuple):
    """What one grader said about one completion."""

    status: Status
    score: float | None
    """In [0, 1]; None unless the status is ok."""
    milliseconds: float
    detail: str


@dataclass(frozen=True)
class GradingPlan:
    """How the completions of one data set are judged in one stage."""

    weights: Mapping[str, float]
    """Each grader's share of the sum; the shares add up to 1."""
    gates: tuple[str, ...]
    """Graders whose scores multiply the sum."""
    on_missing_score: OnMissingScore

    @classmethod
    def make(
        cls, weights: Mapping[str, float], gates: tuple[str, ...], on_missing_score: OnMissingScore
    ) -> "GradingPlan":
        """Normalise the weights and sort them by name; graders of weight 0 come last, and still run and are shown."""
        whole = fsum(weights.values())
        names = sorted(weights, key=lambda name: (not weights[name], name))
        return cls({name: weights[name] / whole for name in names}, gates, on_missing_score)

    @cached_property
    def graders(self) -> tuple[str, ...]:
        """Every grader to run, once, in the order in which they use up the time for one completion.

        Sorted by name, so that the order in the config does not matter; graders that cannot affect the reward come
        last.
        """
        deciding = {*self.counted, *self.gates}
        return (*sorted(deciding), *(name for name in self.weights if name not in deciding))

    @cached_property
    def counted(self) -> Mapping[str, float]:
        """The shares above 0: a grader of weight 0 does not affect the reward, not even by failing."""
        return {name: weight for name, weight in self.weights.items() if weight > 0}


class Reward(NamedTuple):
    """The outcome for one completion; the value is None unless the status is ok."""

    status: Status
    value: float | None
    reason: str


def total_reward(plan: GradingPlan, judgements: Mapping[str, Judgement]) -> Reward:
    """Σ wᵢ·sᵢ / Σ wᵢ × Π gates, over the graders of the plan."""
    weights = plan.counted
    missing = [name for name in weights if judgements[name].score is None]
    closed = [name for name in plan.gates if judgements[name].score is None]
    if plan.on_missing_score == "renormalise" and len(missing) < len(weights):
        weights = {name: weight for name, weight in weights.items() if name not in missing}
        # Errors stay missing: otherwise a completion that makes a grader time out would be paid by the others.
        missing = [name for name in missing if judgements[name].status == "error"]
    if (missing or closed) and plan.on_missing_score != "zero":
        return _no_reward(sorted({*missing, *closed}), judgements)
    weighted = sum(weight * (judgements[name].score or 0.0) for name, weight in weights.items())
    gates = prod(judgements[name].score or 0.0 for name in plan.gates)
    # Float shares may add up to slightly more than 1.
    return Reward("ok", min(1.0, weighted / sum(weights.values()) * gates), "")


def _no_reward(names: list[str], judgements: Mapping[str, Judgement]) -> Reward:
    failed = [name for name in names if judgements[name].status == "error"]
    name = (failed or names)[0]
    return Reward("error" if failed else "abstain", None, f"{name}: {judgements[name].detail}")
