"""Filter `unscored`: rejects groups of which too many completions have no reward."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from posttrain.rl.rollout.filters.base import Filter

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout


class Unscored(Filter):
    """Rejects a group if more than `max_share` of its completions have no reward, e.g. because graders abstained."""

    kind: Literal["unscored"]
    """Completions without a reward."""

    max_share: float = Field(ge=0, lt=1)
    """Largest share to accept."""

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        found = sum(each.reward is None for each in group)
        return f"{found} of {len(group)} completions have no reward" if found > self.max_share * len(group) else None
