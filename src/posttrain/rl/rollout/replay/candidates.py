"""The stored groups that a generation may replay: fixed before it is made, so that it depends on no later step."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from posttrain.base.chance import chance
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.rollout import Rollout


@dataclass(frozen=True)
class Candidate:
    """A stored group; `uses` counts how often it was replayed before."""

    key: GroupKey
    uses: int
    rollouts: tuple[Rollout, ...]

    @property
    def dataset(self) -> str:
        """The data set of its prompt."""
        return self.rollouts[0].prompt.dataset

    @property
    def version(self) -> int:
        """Optimizer steps behind the oldest weights that sampled a token of it."""
        return min(int(each.versions.min()) for each in self.rollouts if each.tokens)


@dataclass(frozen=True)
class Candidates:
    """What a generation may replay; the same on every rank.

    Attributes:
        seed: the run's.
        iteration: the generation's.
        wanted: how many groups are replayed at most.
        is_reserved: whether they take slots for which nothing is generated; otherwise those of rejected groups.
        groups: of each data set, the preferred ones first.
    """

    seed: int
    iteration: int
    wanted: int
    is_reserved: bool
    groups: tuple[Candidate, ...]

    def displaced(self, datasets: Sequence[str]) -> dict[int, Candidate]:
        """The group for each slot for which nothing is generated; `datasets`: the data set of each slot."""
        return self._placed(datasets, range(len(datasets))) if self.is_reserved else {}

    def in_place_of(self, datasets: Sequence[str], rejected: Collection[int]) -> dict[int, Candidate]:
        """The group for each slot that gets one in place of its own, which was rejected."""
        return {} if self.is_reserved else self._placed(datasets, rejected)

    def _placed(self, datasets: Sequence[str], slots: Collection[int]) -> dict[int, Candidate]:
        """A group of the same data set for at most `wanted` slots, those with the smallest hash that find one."""
        left: dict[str, list[Candidate]] = {}
        for candidate in reversed(self.groups):
            left.setdefault(candidate.dataset, []).append(candidate)
        placed: dict[int, Candidate] = {}
        for slot in sorted(slots, key=lambda slot: (chance(self.seed, "replay slot", self.iteration, slot), slot)):
            if len(placed) == self.wanted:
                break
            if left.get(datasets[slot]):
                placed[slot] = left[datasets[slot]].pop()
        return dict(sorted(placed.items()))

    def rollouts_and_facts(self) -> tuple[list[Rollout], dict[str, Any]]:
        """Everything, as rollouts and what JSON can hold; see `of_rollouts_and_facts`."""
        facts = {
            "seed": self.seed,
            "iteration": self.iteration,
            "wanted": self.wanted,
            "is_reserved": self.is_reserved,
            "groups": [[*each.key, each.uses, len(each.rollouts)] for each in self.groups],
        }
        return [rollout for each in self.groups for rollout in each.rollouts], facts

    @classmethod
    def of_rollouts_and_facts(cls, rollouts: Sequence[Rollout], facts: Mapping[str, Any]) -> "Candidates":
        """The candidates that `rollouts_and_facts` described."""
        found = iter(rollouts)
        groups = tuple(
            Candidate(GroupKey(*key), uses, tuple(islice(found, count))) for *key, uses, count in facts["groups"]
        )
        return cls(facts["seed"], facts["iteration"], facts["wanted"], facts["is_reserved"], groups)
