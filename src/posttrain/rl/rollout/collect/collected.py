"""A generation as training gets it."""

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Prompt, Rollout


@dataclass(frozen=True)
class Collected:
    """A generation on all ranks.

    Attributes:
        prompts: those that the curriculum asks, in slot order.
        rollouts: in slot order, without tokens for prompts that replay displaces; with segments, of the groups that it
            made whole.
        seconds: what this rank spent on it.
        candidates: what it may replay.
    """

    prompts: Sequence[Prompt]
    rollouts: list[Rollout]
    seconds: dict[str, float]
    candidates: Candidates | None = None
