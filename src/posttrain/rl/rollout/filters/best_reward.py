"""Filter `best_reward`: rejects groups in which no completion is good enough."""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posttrain.rl.rollout.filters.base import ScoreFilter


class BestReward(ScoreFilter):
    """Rejects a group if its best reward is below `min`; one without rewards is accepted."""

    kind: Literal["best_reward"]
    """Groups without one good completion, by the best reward."""

    min: float = Field(le=1)
    """Lowest best reward to accept."""

    def verdict_on(self, values: Sequence[float]) -> str | None:
        """As above."""
        best = max(values, default=self.min)
        return f"the best reward {best:.3g} is below {self.min:g}" if best < self.min else None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return self.min <= 0
