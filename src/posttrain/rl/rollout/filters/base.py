"""Base class of filters: a config section that says whether a group of completions is worth training on."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from posttrain.config.strict import StrictModel

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout


class Filter(StrictModel):
    """Base of all filters. A subclass has `kind: Literal["its_name"]`, its parameters, and `verdict`."""

    @property
    def name(self) -> str:
        """The name under which its rejections are counted."""
        return self.model_dump(include={"kind"})["kind"]

    @property
    def inner(self) -> "Mapping[str, Filter]":
        """The filters that it is made of, by their keys below its own."""
        return {}

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """Why the group is rejected, in a few words; None if it is accepted.

        Pure: the same group gets the same verdict, wherever and whenever it is asked.

        Args:
            group: the completions of one prompt, at least one.
            iteration: the dataserver iteration whose prompt they complete.

        Raises:
            RunError: the user's function failed.
        """
        raise NotImplementedError

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """Why no group of a run can be accepted, in a few words; None unless the settings alone show it.

        Args:
            generations: completions of a group.
            longest: the most tokens of a completion.
        """
        return None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """Whether no group of a run can be rejected, as far as the settings alone show it; arguments as above."""
        return False


class ScoreFilter(Filter):
    """Base of the filters that look at rewards, or at one grader's scores. What has no score never counts as 0."""

    component: str | None = Field(default=None, min_length=1)
    """Look at this grader's scores instead of the rewards; groups whose prompts it does not grade are accepted."""

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above, by `verdict_on` the values that there are."""
        values = self._values(group)
        return None if values is None else self.verdict_on(values)

    def verdict_on(self, values: Sequence[float]) -> str | None:
        """The verdict on the rewards or scores that there are, which may be none."""
        raise NotImplementedError

    def _values(self, group: "Sequence[Rollout]") -> list[float] | None:
        """The values that there are; None if the grader has not been asked."""
        results = [each.result for each in group if each.result is not None]
        if self.component is None:
            return [result.reward for result in results if result.reward is not None]
        asked = [result.components[self.component] for result in results if self.component in result.components]
        if results and not asked:
            return None
        return [component.score for component in asked if component.score is not None]
