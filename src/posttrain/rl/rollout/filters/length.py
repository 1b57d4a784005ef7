"""Filter `length`: rejects groups whose completions are too short or too long."""

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from posttrain.rl.rollout.filters.base import Filter

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout


class Length(Filter):
    """Rejects a group if any completion, all of them, or their mean length is outside `min_tokens` … `max_tokens`."""

    kind: Literal["length"]
    """Completions that are too short or too long, in tokens."""

    min_tokens: int | None = Field(default=None, ge=1)
    """Smallest length to accept."""

    max_tokens: int | None = Field(default=None, ge=1)
    """Largest length to accept."""

    of: Literal["any", "all", "mean"] = "mean"
    """Reject if any completion is outside, if all are, or if their mean length is."""

    @model_validator(mode="after")
    def _is_a_range(self) -> "Length":
        if self.min_tokens is None and self.max_tokens is None:
            raise ValueError("give min_tokens, max_tokens or both; without them nothing is rejected")
        if self.min_tokens is not None and self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens: {self.min_tokens} is above max_tokens: {self.max_tokens}, so every group is rejected"
            )
        return self

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        lengths = [each.tokens for each in group]
        if self.of == "mean":
            mean = statistics.fmean(lengths)
            return f"the mean length is {mean:.1f} tokens" if self._is_outside(mean) else None
        outside = [tokens for tokens in lengths if self._is_outside(tokens)]
        rejects = len(outside) == len(lengths) if self.of == "all" else bool(outside)
        return f"{len(outside)} of {len(lengths)} completions, e.g. of {outside[0]} tokens" if rejects else None

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """As above."""
        if (self.min_tokens or 0) <= longest:
            return None
        return f"min_tokens: {self.min_tokens} is above max_new_tokens: {longest}"

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return self.min_tokens is None and (self.max_tokens or 0) >= longest

    def _is_outside(self, tokens: float) -> bool:
        return (self.min_tokens is not None and tokens < self.min_tokens) or (
            self.max_tokens is not None and tokens > self.max_tokens
        )
