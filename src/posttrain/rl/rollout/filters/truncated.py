"""Filter `truncated`: rejects groups of which too many completions were cut at their limit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from posttrain.rl.rollout.filters.base import Filter

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout


class Truncated(Filter):
    """Rejects a group if more than `max_share` of its completions reached `max_new_tokens`."""

    kind: Literal["truncated"]
    """Completions that were cut at `max_new_tokens`."""

    max_share: float = Field(ge=0, lt=1)
    """Largest share to accept."""

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        found = sum(each.was_cut for each in group)
        return f"{found} of {len(group)} completions were cut" if found > self.max_share * len(group) else None
