"""The groups that a generation trains, by the filters' verdicts on all that were asked."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np

from posttrain.errors import RunError
from posttrain.rl.rollout.filters.catalogue import Rejection, rejection
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.replay.candidates import Candidate, Candidates
from posttrain.rl.rollout.replay.successes import Helped
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place, Selection, next_round, select

Groups = Mapping[Place, Sequence[Rollout]]


@dataclass(frozen=True)
class Choice:
    """What a generation asked and what it trains.

    Attributes:
        datasets: of each slot.
        groups: all groups that were generated, by place.
        verdicts: why each is rejected; None if it is accepted.
        selection: the place of the group that each slot trains.
        displaced: the slots for which nothing was generated, since a replayed group takes them.
        replayed: the group of an earlier step that a slot trains.
        helped: the groups with a remembered solution in them, by slot.
    """

    datasets: Sequence[str]
    groups: Groups
    verdicts: Mapping[Place, Rejection | None]
    selection: Selection
    displaced: frozenset[int] = frozenset()
    replayed: Mapping[int, Candidate] = field(default_factory=dict)
    helped: Mapping[int, Helped] = field(default_factory=dict)

    @property
    def asked(self) -> list[Rollout]:
        """The completions of the prompts that the curriculum asked, in slot order, without displaced ones."""
        return [each for place, group in sorted(self.groups.items()) if not place.attempt for each in group]

    @property
    def trained(self) -> list[Rollout]:
        """The completions to train on, for every slot; those of a slot that is left empty have no tokens."""
        chosen: list[Rollout] = []
        for slot, place in enumerate(self.selection.trained):
            if slot in self.replayed:
                chosen += self.replayed[slot].rollouts
            elif slot in self.helped:
                chosen += self.helped[slot].group
            else:
                group = self.groups[place or Place(0, slot)]
                chosen += group if place is not None else [_left_out(each) for each in group]
        return chosen

    @property
    def accepted(self) -> Groups:
        """The generated groups that the filters accept."""
        return {place: group for place, group in self.groups.items() if self.verdicts[place] is None}

    def next_round(self, attempts: int) -> tuple[Place, ...]:
        """The substitutes to ask next; see `selection.next_round`."""
        accepted = {place: each is None for place, each in self.verdicts.items()}
        return next_round(self.datasets, accepted, attempts, self.replayed)

    def metrics(self) -> dict[str, float]:
        """Shares of the groups that each filter rejects, and of the generated slots with an accepted one or a
        substitute."""
        places = [each for each in self.selection.trained if each is not None]
        slots = max(len(self.selection.trained) - len(self.displaced), 1)
        names = Counter(each.name for each in self.verdicts.values() if each is not None)
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


def verdicts(groups: Groups, config: RejectionConfig, iteration: int | None) -> dict[Place, Rejection | None]:
    """The filters' verdicts; RunError if a user's function fails.

    Args:
        iteration: that asked all of the groups; None if each has its own.
    """
    return {
        place: rejection(config.filters, group, group[0].prompt.iteration if iteration is None else iteration)
        for place, group in groups.items()
    }


def require_same_verdicts(everywhere: Sequence[Mapping[Place, Rejection | None]]) -> None:
    """Check that the filters judge the same groups alike in all processes.

    Args:
        everywhere: the verdicts of each process.

    Raises:
        RunError: they do not.
    """
    for place in everywhere[0]:
        names = {each.name if (each := theirs[place]) else None for theirs in everywhere}
        if len(names) > 1:
            named = " and ".join(sorted(name for name in names if name is not None))
            raise RunError(
                f"the filter {named} rejects a group in one process and accepts it in another; its verdict must depend "
                "on the group alone, not on time, random numbers or earlier groups"
            )


def datasets(groups: Groups) -> list[str]:
    """The data set of each slot."""
    return [group[0].prompt.dataset for place, group in sorted(groups.items()) if not place.attempt]


def choose(
    asked: Groups, config: RejectionConfig, iteration: int | None, candidates: Candidates | None = None
) -> Choice:
    """Judge all groups of a generation, and choose those to train.

    Args:
        asked: the groups, without tokens where nothing was generated.
        iteration: that asked all of them; None if each has its own.
        candidates: what may be replayed; a rejected group is replaced by one of these rather than by a substitute.

    Raises:
        RunError: a user's function failed.
    """
    of_slots = datasets(asked)
    displaced = {} if candidates is None else candidates.displaced(of_slots)
    groups = {place: group for place, group in asked.items() if place.slot not in displaced}
    found = verdicts(groups, config, iteration)
    accepted = {place: each is None for place, each in found.items()}
    rejected = [place.slot for place, is_accepted in accepted.items() if not place.attempt and not is_accepted]
    replayed = displaced if candidates is None else displaced | candidates.in_place_of(of_slots, rejected)
    selection = select(of_slots, accepted, config.rejected, replayed)
    return Choice(of_slots, groups, found, selection, frozenset(displaced), replayed)


def _left_out(rollout: Rollout) -> Rollout:
    return replace(
        rollout,
        ids=rollout.ids[:0],
        mask=rollout.mask[:0],
        versions=rollout.versions[:0],
        logprobs=None if rollout.logprobs is None else np.zeros(0, np.float32),
        result=None,
        is_left_out=True,
    )
