"""Filter `mean_reward`: rejects groups whose prompts are too easy or too hard."""

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from posttrain.rl.rollout.filters.base import ScoreFilter


class MeanReward(ScoreFilter):
    """Rejects a group if its mean reward is below `min` or above `max`; one without rewards is accepted."""

    kind: Literal["mean_reward"]
    """Prompts that are too easy or too hard, by the mean reward."""

    min: float | None = Field(default=None, le=1)
    """Lowest mean to accept."""

    max: float | None = Field(default=None, ge=0)
    """Highest mean to accept."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "MeanReward":
        if self.min is None and self.max is None:
            raise ValueError("give min, max or both; without them nothing is rejected")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min: {self.min:g} is above max: {self.max:g}, so every group is rejected")
        return self

    def verdict_on(self, values: Sequence[float]) -> str | None:
        """As above."""
        mean = statistics.fmean(values) if values else None
        if mean is None:
            return None
        if self.min is not None and mean < self.min:
            return f"the mean reward {mean:.3g} is below {self.min:g}"
        return f"the mean reward {mean:.3g} is above {self.max:g}" if self.max is not None and mean > self.max else None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return (self.min or 0) <= 0 and (self.max is None or self.max >= 1)
