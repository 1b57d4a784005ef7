"""Filter `reward_spread`: rejects groups whose rewards are all about equal, so that they teach nothing."""

import statistics
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from posttrain.base.text import counted
from posttrain.rl.rollout.filters.base import ScoreFilter


class RewardSpread(ScoreFilter):
    """Rejects a group if the standard deviation of its rewards (over n) is below `min_std`, or if fewer than 2 of its
    completions have one.

    Source: dynamic sampling of DAPO, arXiv:2503.14476, section 3.2.
    """

    kind: Literal["reward_spread"]
    """Rewards that are all about equal, whose advantages are 0 (dynamic sampling of arXiv:2503.14476)."""

    min_std: float = Field(default=1e-6, gt=0, le=0.5)  # of values in [0, 1] it is at most 0.5
    """Lowest standard deviation to accept; about 0.01 for shaped rewards, whose small differences are mostly noise that
    `scale_rewards: group` would amplify."""

    def verdict_on(self, values: Sequence[float]) -> str | None:
        """As above."""
        if len(values) < 2:
            return f"{counted(len(values), 'reward')}, so there is nothing to compare"
        spread = statistics.pstdev(values)
        return f"the rewards' standard deviation is {spread:.3g}" if spread < self.min_std else None
