"""`rollout.replay`: which groups are stored, chosen again, and given up."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from posttrain.rl.rollout.replay.candidates import Candidate, Candidates
from posttrain.rl.rollout.replay.choice import is_usable, preferred_groups, wanted_groups
from posttrain.rl.rollout.replay.config import RolloutReplayConfig
from posttrain.rl.rollout.replay.store import Entry, GroupKey, RolloutStore
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place

logger = logging.getLogger(__name__)


class Replay:
    """The replay of one run. One process owns it; the others get the rollouts that it chose.

    `step` is always the index of the optimizer step being trained, from 0. A generation holds its candidates when it is
    begun, which may be several steps before it is trained: what it may replay is a function of the state then. In each
    step: `hold` for the generation that it begins, `settle` and `store` for the one that it trains, and at its end
    `evict`. After `rewind`, the same calls give the same results again.
    """

    def __init__(self, config: RolloutReplayConfig, seed: int, folder: Path, stride: int = 1) -> None:
        """`folder`: `RUN/replay`. `stride`: optimizer steps per generation. DataError if the index is damaged."""
        self._config, self._seed, self._stride = config, seed, stride
        self.stored = RolloutStore(folder)
        self._has_warned = False

    def close(self) -> None:
        """Close the store."""
        self.stored.close()

    def hold(self, step: int, iteration: int, groups: int, graded_by: Mapping[str, str]) -> Candidates:
        """What a generation may replay, from what was stored in earlier steps, with its rollouts.

        Args:
            iteration: the one that will train it; later than `step` if generation runs ahead.
            groups: how many groups the generation has.
            graded_by: for each data set that it may ask, what identifies its graders; see `Entry`.

        Raises:
            DataError: a file is damaged.
        """
        config, state = self._config, self.stored.state(step)
        wanted = wanted_groups(config, self._seed, iteration, groups)
        found = preferred_groups(state, config, self._seed, iteration, wanted, graded_by, self._stride)
        self.stored.held(step, [entry.key for entry in found])
        held = (Candidate(entry.key, entry.uses, tuple(self.stored.rollouts(entry.key))) for entry in found)
        return Candidates(self._seed, iteration, wanted, config.fill == "reserved", tuple(held))

    def settle(self, step: int, candidates: Candidates, used: Collection[GroupKey]) -> None:
        """Record which of its candidates a generation replays; the others are free again."""
        self.stored.used(step, used)
        self.stored.released(step, [each.key for each in candidates.groups if each.key not in used])

    def store(
        self, step: int, generation: int, groups: Mapping[Place, Sequence[Rollout]], graded_by: Mapping[str, str]
    ) -> list[GroupKey]:
        """Keep new groups whose rewards differ, since the others would teach nothing; see `RolloutStore.store`."""
        kept = {
            place: group
            for place, group in groups.items()
            if len({each.reward for each in group if each.reward is not None}) > 1
        }
        return self.stored.store(step, generation, kept, graded_by)

    def evict(
        self,
        step: int,
        following: int,
        graded_by: Mapping[str, str],
        checkpoints: Iterable[int],
        masked: Mapping[GroupKey, float] | None = None,
    ) -> list[GroupKey]:
        """Give up the groups that no later generation can use, and the oldest beyond `max_bytes`; returns them.

        Groups that a generation holds stay until it is trained.

        Args:
            following: the iteration of the next generation that chooses.
            graded_by: for each data set that it may ask, what identifies its graders.
            checkpoints: the optimizer steps of the checkpoints that are kept; their files stay.
            masked: for the groups that the step replayed, the share of their tokens beyond the limits.
        """
        masked = masked or {}
        entries = list(self.stored.state(step + 1).values())
        left = [
            entry
            for entry in entries
            if entry.is_held
            or (
                masked.get(entry.key, 0.0) <= self._config.max_masked_share
                and is_usable(entry, self._config, following, graded_by, self._stride)
            )
        ]
        kept = self._within_size(left)
        gone = [entry.key for entry in entries if entry.key not in kept]
        self.stored.evicted(step, gone)
        self.stored.remove_files({*checkpoints, step + 1})
        return gone

    def rewind(self, finished: int) -> None:
        """Go back to the state after `finished` optimizer steps, as a resumed run does."""
        self.stored.rewind(finished)

    def _within_size(self, entries: Sequence[Entry]) -> set[GroupKey]:
        """The newest groups that together have at most `max_bytes`, and those that are held."""
        kept: set[GroupKey] = set()
        size = 0
        for entry in sorted(entries, key=lambda entry: (entry.is_held, entry.version, entry.key), reverse=True):
            size += entry.size
            if size > self._config.max_bytes and not entry.is_held:
                break
            kept.add(entry.key)
        if len(kept) < len(entries) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "stored rollouts exceed rollout.replay.max_bytes %d: the oldest are given up before max_age",
                self._config.max_bytes,
            )
        return kept
