"""The groups that a generation trains, by the filters' verdicts on all that were asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from posttrain.rl.rollout.filters.catalogue import Rejection, rejection
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place, Selection, select

Groups = Mapping[Place, Sequence[Rollout]]


@dataclass(frozen=True)
class Choice:
    """What a generation asked and what it trains.

    Attributes:
        groups: all groups that were asked, by place.
        verdicts: why each is rejected; None if it is accepted.
        selection: the place of the group that each slot trains.
    """

    groups: Groups
    verdicts: Mapping[Place, Rejection | None]
    selection: Selection

    @property
    def asked(self) -> list[Rollout]:
        """The completions of the prompts that the curriculum asked, in slot order."""
        return [each for place, group in sorted(self.groups.items()) if not place.attempt for each in group]

    @property
    def trained(self) -> list[Rollout]:
        """The completions to train on, for every slot; those of a slot that is left empty have no tokens."""
        chosen = []
        for slot, place in enumerate(self.selection.trained):
            group = self.groups[place or Place(0, slot)]
            chosen += group if place is not None else [_left_out(each) for each in group]
        return chosen

    def metrics(self) -> dict[str, float]:
        """Shares of the groups that each filter rejects, and of the slots with an accepted group or a substitute."""
        slots, places = len(self.selection.trained), [each for each in self.selection.trained if each is not None]
        names = Counter(each.name for each in self.verdicts.values() if each is not None)
        if not slots:
            return {"rollouts/groups_asked": 0.0}
        return {
            **{f"filters/{name}": count / len(self.verdicts) for name, count in sorted(names.items())},
            "rollouts/accepted_share": self.selection.accepted / slots,
            "rollouts/substituted_share": sum(place.attempt > 0 for place in places) / slots,
            "rollouts/groups_asked": float(len(self.groups)),
            "rollouts/groups_unused": float(len(self.selection.unused)),
        }


def by_place(rollouts: Sequence[Rollout]) -> Groups:
    """The groups of rollouts of which those of one prompt are adjacent."""
    return {place: list(group) for place, group in groupby(rollouts, key=lambda each: each.prompt.place)}


def in_order(rollouts: Sequence[Rollout]) -> Groups:
    """The groups of rollouts in sorted order, each in a slot of its own."""
    divided = [list(group) for _, group in groupby(rollouts, key=lambda each: each.prompt.group)]
    return {Place(0, slot): group for slot, group in enumerate(divided)}


def verdicts(groups: Groups, config: RejectionConfig, iteration: int) -> dict[Place, Rejection | None]:
    """The filters' verdicts; RunError if a user's function fails."""
    return {place: rejection(config.filters, group, iteration) for place, group in groups.items()}


def datasets(groups: Groups) -> list[str]:
    """The data set of each slot."""
    return [group[0].prompt.dataset for place, group in sorted(groups.items()) if not place.attempt]


def choose(groups: Groups, config: RejectionConfig, iteration: int) -> Choice:
    """Judge all groups of a generation, and choose those to train; RunError if a user's function fails."""
    found = verdicts(groups, config, iteration)
    accepted = {place: each is None for place, each in found.items()}
    return Choice(groups, found, select(datasets(groups), accepted, config.rejected))


def _left_out(rollout: Rollout) -> Rollout:
    return replace(
        rollout,
        ids=rollout.ids[:0],
        mask=rollout.mask[:0],
        versions=rollout.versions[:0],
        logprobs=None if rollout.logprobs is None else np.zeros(0, np.float32),
        result=None,
    )
