"""`rollout.replay`: which groups are stored, chosen again, and given up."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from posttrain.rl.rollout.replay.choice import choose_groups, is_usable, wanted_groups
from posttrain.rl.rollout.replay.config import RolloutReplayConfig
from posttrain.rl.rollout.replay.store import Entry, GroupKey, RolloutStore
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place

logger = logging.getLogger(__name__)


class Replay:
    """The replay of one run. One process owns it; the others get the rollouts that it chose.

    `step` is always the index of the optimizer step being trained, from 0. In each step: `choose` and `used`, then
    `store`, and at its end `evict`. After `rewind`, the same calls give the same results again.
    """

    def __init__(self, config: RolloutReplayConfig, seed: int, folder: Path) -> None:
        """`folder`: `RUN/rollouts`. DataError if its index is damaged."""
        self._config, self._seed = config, seed
        self.stored = RolloutStore(folder)
        self._has_warned = False

    def close(self) -> None:
        """Close the store."""
        self.stored.close()

    def wanted(self, iteration: int, groups: int) -> int:
        """How many of an iteration's groups should be replayed."""
        return wanted_groups(self._config, self._seed, iteration, groups)

    def choose(
        self, step: int, iteration: int, wanted: int, datasets: Mapping[int, str], graded_by: Mapping[str, str]
    ) -> dict[int, GroupKey]:
        """The stored group for each slot that gets one, from what was stored in earlier steps; see `choose_groups`.

        Read their rollouts before `evict`, which may remove the files of groups that were used for the last time.

        Args:
            iteration: the one that will train them; later than `step` if generation runs ahead.
        """
        state = self.stored.state(step)
        return choose_groups(state, self._config, self._seed, iteration, wanted, datasets, graded_by)

    def rollouts(self, key: GroupKey) -> list[Rollout]:
        """A chosen group's rollouts, bit for bit as they were stored; DataError if its file is damaged."""
        return self.stored.rollouts(key)

    def used(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that these groups were chosen."""
        self.stored.used(step, keys)

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
        graded_by: Mapping[str, str],
        checkpoints: Iterable[int],
        masked: Mapping[GroupKey, float] | None = None,
    ) -> list[GroupKey]:
        """Give up the groups that no later step can use, and the oldest beyond `max_bytes`; returns them.

        Args:
            graded_by: for each data set that the next step may ask, what identifies its graders.
            checkpoints: the optimizer steps of the checkpoints that are kept; their files stay.
            masked: for the groups that the step replayed, the share of their tokens beyond the limits.
        """
        masked = masked or {}
        entries = list(self.stored.state(step + 1).values())
        left = [
            entry
            for entry in entries
            if masked.get(entry.key, 0.0) <= self._config.max_masked_share
            and is_usable(entry, self._config, step + 1, graded_by)
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
        """The newest groups that together have at most `max_bytes`."""
        kept: set[GroupKey] = set()
        size = 0
        for entry in sorted(entries, key=lambda entry: (entry.version, entry.key), reverse=True):
            size += entry.size
            if size > self._config.max_bytes:
                break
            kept.add(entry.key)
        if len(kept) < len(entries) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "stored rollouts exceed rollout.replay.max_bytes %d: the oldest are given up before max_age",
                self._config.max_bytes,
            )
        return kept
