"""All filters, as a union of config sections by `kind`, and the filters that combine others."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field, field_validator

from posttrain.base.text import first_of
from posttrain.base.user_code import function_digest
from posttrain.errors import ConfigError, RunError
from posttrain.rl.rollout.filters.base import Filter, ScoreFilter
from posttrain.rl.rollout.filters.best_reward import BestReward
from posttrain.rl.rollout.filters.diversity import Diversity
from posttrain.rl.rollout.filters.length import Length
from posttrain.rl.rollout.filters.mean_reward import MeanReward
from posttrain.rl.rollout.filters.python import EXAMPLE, PythonFilter
from posttrain.rl.rollout.filters.reward_spread import RewardSpread
from posttrain.rl.rollout.filters.truncated import Truncated
from posttrain.rl.rollout.filters.unscored import Unscored

if TYPE_CHECKING:
    from posttrain.rl.rollout.rollout import Rollout


class _Combined(Filter):
    filters: tuple["AnyFilter", ...]
    """The filters, at least two, each with its own keys."""

    @field_validator("filters")
    @classmethod
    def _several(cls, filters: "tuple[AnyFilter, ...]") -> "tuple[AnyFilter, ...]":
        # Not `min_length`, which pydantic also reports if an item is wrong.
        if len(filters) < 2:
            raise ValueError("needs at least 2 filters; name a single one directly")
        return filters

    @property
    def inner(self) -> Mapping[str, Filter]:
        """The filters."""
        return {f"filters.{number}": each for number, each in enumerate(self.filters)}

    def _reasons(self, group: "Sequence[Rollout]", iteration: int) -> list[str]:
        verdicts = [(each, each.verdict(group, iteration)) for each in self.filters]
        return [f"{each.name}: {reason}" for each, reason in verdicts if reason is not None]

    def _reject_all(self, generations: int, longest: int) -> list[str]:
        """Why each of the filters rejects every group, of those that do."""
        reasons = {key: each.why_rejects_all(generations, longest) for key, each in self.inner.items()}
        return [f"{key}: {reason}" for key, reason in reasons.items() if reason is not None]


class AllOf(_Combined):
    """Rejects a group that all its filters reject."""

    kind: Literal["all_of"]
    """What all of the filters reject."""

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        reasons = self._reasons(group, iteration)
        return "; ".join(reasons) if len(reasons) == len(self.filters) else None

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """As above."""
        reasons = self._reject_all(generations, longest)
        return "; ".join(reasons) if len(reasons) == len(self.filters) else None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return any(each.accepts_all(generations, longest) for each in self.filters)


class AnyOf(_Combined):
    """Rejects a group that any of its filters rejects."""

    kind: Literal["any_of"]
    """What any of the filters rejects."""

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        return "; ".join(self._reasons(group, iteration)) or None

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """As above."""
        return "; ".join(self._reject_all(generations, longest)) or None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return all(each.accepts_all(generations, longest) for each in self.filters)


class Not(Filter):
    """Rejects a group that its filter accepts."""

    kind: Literal["not"]
    """What the filter accepts."""

    filter: "AnyFilter"
    """The filter, with its own keys."""

    @property
    def inner(self) -> Mapping[str, Filter]:
        """The filter."""
        return {"filter": self.filter}

    def verdict(self, group: "Sequence[Rollout]", iteration: int) -> str | None:
        """As above."""
        return f"{self.filter.name} accepts it" if self.filter.verdict(group, iteration) is None else None

    def why_rejects_all(self, generations: int, longest: int) -> str | None:
        """As above."""
        return f"{self.filter.name} accepts every group" if self.filter.accepts_all(generations, longest) else None

    def accepts_all(self, generations: int, longest: int) -> bool:
        """As above."""
        return self.filter.why_rejects_all(generations, longest) is not None


AnyFilter = Annotated[
    RewardSpread
    | MeanReward
    | BestReward
    | Diversity
    | Length
    | Truncated
    | Unscored
    | PythonFilter
    | AllOf
    | AnyOf
    | Not,
    Field(discriminator="kind"),
]
for combining in (AllOf, AnyOf, Not):
    combining.model_rebuild()

FILTERS: Mapping[str, type[Filter]] = {
    get_args(member.model_fields["kind"].annotation)[0]: member for member in get_args(get_args(AnyFilter)[0])
}
"""Each filter by its kind."""


@dataclass(frozen=True)
class Rejection:
    """Why a group is not worth training on.

    Attributes:
        name: under which it is counted: the filter's kind, or the name of the user's function.
        reason: a few words about this group.
    """

    name: str
    reason: str


def rejection(filters: Iterable[Filter], group: "Sequence[Rollout]", iteration: int) -> Rejection | None:
    """The verdict of the first filter that rejects the group, or None; RunError as in `Filter.verdict`."""
    verdicts = ((each.name, each.verdict(group, iteration)) for each in filters)
    return next((Rejection(name, reason) for name, reason in verdicts if reason is not None), None)


def all_filters(filters: Sequence[Filter]) -> Iterator[tuple[str, Filter]]:
    """The filters, and those that they are made of, each with its key in the config."""
    waiting = [(f"rollout.filters.{number}", each) for number, each in enumerate(filters)]
    while waiting:
        key, each = waiting.pop(0)
        yield key, each
        waiting += [(f"{key}.{below}", inner) for below, inner in each.inner.items()]


def require_acceptable(filters: Sequence[Filter], generations: int, longest: int) -> None:
    """Raise ValueError if a filter rejects every group of a run.

    Args:
        generations: completions of a group.
        longest: the most tokens of a completion.
    """
    for number, each in enumerate(filters):
        if (why := each.why_rejects_all(generations, longest)) is not None:
            raise ValueError(f"filters.{number}: {why}, so every group is rejected; change it, or leave it out")


def check_user_filters(filters: Sequence[Filter]) -> None:
    """Call each user function once on a group of three completions, one of them without a reward.

    Raises:
        ConfigError: a function does not exist, raises an error, or returns neither a text nor None.
    """
    for key, each in all_filters(filters):
        if isinstance(each, PythonFilter):
            try:
                each.verdict_on(copy.deepcopy(EXAMPLE))
            except (ConfigError, RunError) as error:
                raise ConfigError(f"{key}: {error}") from error


def filter_digests(filters: Sequence[Filter]) -> dict[str, str]:
    """Hashes of the user functions' files by config key; part of a run's identity. ConfigError if one is unreadable."""
    functions = {f"{key}.path": each.path for key, each in all_filters(filters) if isinstance(each, PythonFilter)}
    return {key: function_digest(key, path) for key, path in functions.items()}


def require_known_graders(filters: Sequence[Filter], graders: AbstractSet[str]) -> None:
    """Raise ConfigError if a filter looks at the scores of a grader that is not one of the dataserver's."""
    for key, each in all_filters(filters):
        if isinstance(each, ScoreFilter) and each.component is not None and each.component not in graders:
            raise ConfigError(
                f"{key}.component: {each.component} is not one of the dataserver's graders: "
                f"{first_of(sorted(graders)) or 'it has none'}"
            )
