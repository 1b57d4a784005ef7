"""Completions of a few prompts with their rewards, and the numbers that tell how much they would teach."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.dataserver.schemas import Component, Sample
from posttrain.rl.rollout.rollout import Prompt, Rollout


@dataclass(frozen=True)
class Group:
    """A prompt and its completions; none where the prompt is too long.

    `iteration` is that of the dataserver whose weights and gates the rewards follow.
    """

    iteration: int
    prompt: Prompt
    sample: Sample
    completions: tuple[Rollout, ...]

    @property
    def rewards(self) -> list[float]:
        """Those of the completions that have one."""
        return [each.reward for each in self.completions if each.reward is not None]

    @property
    def different(self) -> int:
        """How many different texts there are."""
        return len({each.text for each in self.completions})

    @property
    def is_alike(self) -> bool:
        """Whether all completions, of which there are several, say the same."""
        return len(self.completions) > 1 and self.different == 1

    @property
    def asked_text(self) -> str:
        """All messages of the prompt."""
        return "\n".join(message.content for message in self.sample.messages)


@dataclass(frozen=True)
class Summary:
    """Means over the completions; None where there is nothing to take a mean of.

    Attributes:
        reward: over those that have one.
        reward_std: standard deviation within a group (over n − 1, as TRL's), its mean over the groups.
        zero_variance_share: of the groups of two rewards or more, those whose rewards are all equal.
        distinct_share: different texts of a group, as a share of its completions.
        tokens: mean length.
    """

    completions: int
    reward: float | None
    reward_std: float | None
    zero_variance_share: float | None
    abstained: int
    failed: int
    truncated_share: float | None
    distinct_share: float | None
    tokens: float | None


def summarise(groups: Sequence[Group]) -> Summary:
    """The numbers of all groups together."""
    completions = all_completions(groups)
    judged = [group.rewards for group in groups if len(group.rewards) > 1]
    statuses = [each.result.status for each in completions if each.result is not None]
    return Summary(
        completions=len(completions),
        reward=_mean([reward for group in groups for reward in group.rewards]),
        reward_std=_mean([statistics.stdev(rewards) for rewards in judged]),
        zero_variance_share=_mean([float(len(set(rewards)) == 1) for rewards in judged]),
        abstained=statuses.count("abstain"),
        failed=statuses.count("error"),
        truncated_share=_mean([float(each.was_cut) for each in completions]),
        distinct_share=sum(group.different for group in groups) / len(completions) if completions else None,
        tokens=_mean([float(each.tokens) for each in completions]),
    )


def all_completions(groups: Sequence[Group]) -> list[Rollout]:
    """Those of all groups, in their order."""
    return [each for group in groups for each in group.completions]


def said_by_graders(groups: Sequence[Group]) -> dict[str, list[tuple[Rollout, Component]]]:
    """By the name of each grader: what it said, and of which completion."""
    said: dict[str, list[tuple[Rollout, Component]]] = {}
    for each in all_completions(groups):
        for name, component in each.result.components.items() if each.result is not None else ():
            said.setdefault(name, []).append((each, component))
    return said


def percentile(values: Sequence[int], percent: float) -> int:
    """The least value that `percent` % of the values are not above (the nearest rank)."""
    return sorted(values)[max(0, math.ceil(percent / 100 * len(values)) - 1)]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
