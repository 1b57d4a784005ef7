"""`rollout.successes`: a remembered solution takes a place in a group that failed throughout."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.base.chance import chance
from posttrain.rl.rollout.replay.config import SuccessesConfig
from posttrain.rl.rollout.replay.store import Entry, GroupKey, RolloutStore
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.selection import Place


@dataclass(frozen=True)
class Helped:
    """A group with a remembered solution.

    Attributes:
        group: as many rollouts as before; the solution replaces the last one.
        place: index of the solution in it. Its tokens are to be weighted by min(1, π/μ).
        key: where the solution is from.
    """

    group: tuple[Rollout, ...]
    place: int
    key: GroupKey


class Successes:
    """The remembered solutions of one run. One process owns them; `step` is as for `Replay`.

    The newest solution of each prompt is remembered. In each step: `helped` and `used`, then `store`, then `evict`.
    """

    def __init__(self, config: SuccessesConfig, seed: int, folder: Path, stride: int = 1) -> None:
        """`folder`: `RUN/successes`. `stride`: optimizer steps per generation. DataError if the index is damaged."""
        self._config, self._seed, self._stride = config, seed, stride
        self.stored = RolloutStore(folder)

    def close(self) -> None:
        """Close the store."""
        self.stored.close()

    def store(
        self, step: int, generation: int, groups: Mapping[Place, Sequence[Rollout]], graded_by: Mapping[str, str]
    ) -> list[GroupKey]:
        """Remember the best solution of each of a generation's groups that has one; returns which groups these are.

        The groups are those that were sampled, without remembered solutions in them.
        """
        best = {place: self._solution(group) for place, group in groups.items()}
        solved = {place: [solution] for place, solution in best.items() if solution is not None}
        return self.stored.store(step, generation, solved, graded_by)

    def helped(
        self, step: int, iteration: int, slot: int, group: Sequence[Rollout], graded_by: Mapping[str, str]
    ) -> Helped | None:
        """The group with a solution of its prompt in it; None if it did not fail, gets none, or none is remembered.

        Whether a failed group gets one is decided by chance(seed, "success", iteration, slot).
        """
        rewards = [each.reward for each in group]
        has_failed = all(reward is not None and reward < self._config.threshold for reward in rewards)
        if not has_failed or chance(self._seed, "success", iteration, slot) >= self._config.share:
            return None
        entry = self._remembered(step, iteration, group[0].prompt.sample_id, graded_by)
        if entry is None:
            return None
        (solution,) = self.stored.rollouts(entry.key)
        last = group[-1]
        if solution.prompt.ids != last.prompt.ids:
            return None
        taken = replace(solution, prompt=last.prompt, sample=last.sample)
        return Helped((*group[:-1], taken), len(group) - 1, entry.key)

    def used(self, step: int, keys: Iterable[GroupKey]) -> None:
        """Record that these solutions were used."""
        self.stored.used(step, keys)

    def evict(self, step: int, following: int, checkpoints: Iterable[int]) -> list[GroupKey]:
        """Forget solutions that are too old, or older than another one of their prompt; returns where they were from.

        Args:
            following: the iteration of the next generation.
            checkpoints: the optimizer steps of the checkpoints that are kept; their files stay.
        """
        state = self.stored.state(step + 1)
        young = [entry for entry in state.values() if self._is_young(entry, following)]
        newest = {entry.sample_id: entry.key for entry in sorted(young, key=_age_order)}
        gone = [key for key, entry in state.items() if newest.get(entry.sample_id) != key]
        self.stored.evicted(step, gone)
        self.stored.remove_files({*checkpoints, step + 1})
        return gone

    def rewind(self, finished: int) -> None:
        """Go back to the state after `finished` optimizer steps, as a resumed run does."""
        self.stored.rewind(finished)

    def _remembered(self, step: int, iteration: int, sample_id: str, graded_by: Mapping[str, str]) -> Entry | None:
        usable = (
            entry
            for entry in self.stored.state(step).values()
            if entry.sample_id == sample_id
            and entry.graded_by == graded_by.get(entry.dataset)
            and self._is_young(entry, iteration)
        )
        return max(usable, key=_age_order, default=None)

    def _is_young(self, entry: Entry, iteration: int) -> bool:
        youngest, oldest = iteration - entry.version, iteration + self._stride - 1 - entry.version
        return youngest > 0 and oldest <= self._config.max_age

    def _solution(self, group: Sequence[Rollout]) -> Rollout | None:
        """The best rollout of a group, the first of equals, if its reward makes it a solution."""
        rewards = [float("-inf") if each.reward is None else each.reward for each in group]
        best = max(rewards)
        return group[rewards.index(best)] if best >= self._config.threshold else None


def _age_order(entry: Entry) -> tuple[int, GroupKey]:
    return entry.version, entry.key
