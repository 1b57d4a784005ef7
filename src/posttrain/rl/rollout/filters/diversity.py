"""Filter `diversity`: rejects groups whose completions say the same."""

import statistics
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from posttrain.base.text import counted
from posttrain.rl.rollout.filters.base import Filter

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout

_TOGETHER = 3


class Diversity(Filter):
    """Rejects a group if it has fewer than `min_distinct` different texts, or if its completions are more alike than
    `max_similarity`: the mean over all pairs of |A ∩ B| / |A ∪ B| (Jaccard), where A and B are the sets of three
    consecutive tokens of two completions. A completion of fewer than three tokens is one element.
    """

    kind: Literal["diversity"]
    """Completions that say the same."""

    min_distinct: int | None = Field(default=None, ge=2)
    """Fewest different texts to accept."""

    max_similarity: float | None = Field(default=None, ge=0, lt=1)
    """Highest mean similarity to accept; 1 means that all completions are equal."""

    @model_validator(mode="after")
    def _says_something(self) -> "Diversity":
        if self.min_distinct is None and self.max_similarity is None:
            raise ValueError("give min_distinct, max_similarity or both; without them nothing is rejected")
        return self

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        different = len({each.text for each in group})
        if self.min_distinct is not None and different < self.min_distinct:
            return f"{counted(different, 'different text')}, fewer than {self.min_distinct}"
        if self.max_similarity is None or len(group) < 2:
            return None
        similarity = mean_similarity([each.ids.tolist() for each in group])
        if similarity <= self.max_similarity:
            return None
        return f"the completions' similarity is {similarity:.3g}, more than {self.max_similarity:g}"

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """As above."""
        if (self.min_distinct or 0) <= generations:
            return None
        return f"min_distinct: {self.min_distinct} is above generations: {generations}"


def mean_similarity(completions: Sequence[Sequence[int]]) -> float:
    """The mean Jaccard similarity of all pairs of completions, in [0, 1]; see `Diversity`."""
    pieces = [
        {tuple(ids[start : start + _TOGETHER]) for start in range(max(1, len(ids) - _TOGETHER + 1))}
        for ids in completions
    ]
    return statistics.fmean(len(one & other) / len(one | other) for one, other in combinations(pieces, 2))
