"""Store a run's rollouts on the main process, and make the same choices from them on every one."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

from posttrain.base.processes import is_main_process
from posttrain.dataserver.schemas import Meta
from posttrain.rl.config import RLConfig
from posttrain.rl.rollout.choice import Choice
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.replay.replay import Replay
from posttrain.rl.rollout.replay.store import GroupKey
from posttrain.rl.rollout.replay.successes import Helped, Successes
from posttrain.rl.rollout.selection import Place
from posttrain.rl.schedule import RolloutSchedule, graded_by
from posttrain.runs.checkpoints import complete_checkpoints
from posttrain.runs.directory import RunDirectory
from posttrain.train.parallel.ranks import from_main_process


class RolloutKeeper:
    """`rollout.replay` and `rollout.successes` of a run; without both it does nothing.

    All ranks call every method together. `step` is the index of the optimizer step being trained, from 0. What was
    recorded after the step of the first call is forgotten, so that a resumed run decides as it would have.
    """

    def __init__(self, config: RLConfig, schedule: RolloutSchedule, run: RunDirectory, meta: Meta) -> None:
        """Open nothing yet: the folder of a new run may still be emptied."""
        self._config, self._seed = config.rollout, config.training.seed
        self._schedule, self._run, self._meta = schedule, run, meta
        self._replay: Replay | None = None
        self._successes: Successes | None = None
        self._is_open = False

    @property
    def is_on(self) -> bool:
        """Whether it does anything."""
        return self._config.replay is not None or self._config.successes is not None

    def close(self) -> None:
        """Close the stores."""
        for each in (self._replay, self._successes):
            if each is not None:
                each.close()

    def candidates(self, step: int, generation: int) -> Candidates | None:
        """What a generation that is begun now may replay; None without replay.

        Raises:
            DataError: the store is damaged.
        """
        if self._config.replay is None:
            return None
        self._open(step)
        found = None
        if self._replay is not None:
            iteration = self._schedule.iteration_of(generation)
            groups = self._schedule.prompts_per_iteration
            found = self._replay.hold(step, iteration, groups, graded_by(self._meta, iteration))
        return from_main_process(found)

    def helped(self, step: int, choice: Choice) -> Choice:
        """The choice of a generation whose training begins, with remembered solutions in groups that failed.

        Raises:
            DataError: the store is damaged.
        """
        if self._config.successes is None:
            return choice
        self._open(step)
        found: dict[int, Helped] = {}
        if self._successes is not None:
            graders = graded_by(self._meta, step)
            for slot, place in enumerate(choice.selection.trained):
                if slot not in choice.replayed:
                    group = choice.groups[place or Place(0, slot)]
                    helped = self._successes.helped(step, step, slot, group, graders)
                    found |= {} if helped is None else {slot: helped}
            self._successes.used(step, [each.key for each in found.values()])
        return replace(choice, helped=from_main_process(found))

    def keep(self, step: int, generation: int, choice: Choice, candidates: Candidates | None) -> None:
        """Record what the generation whose training begins replays, and store its own groups."""
        if not self.is_on:
            return
        self._open(step)
        graders = graded_by(self._meta, step)
        if self._replay is not None:
            if candidates is not None:
                self._replay.settle(step, candidates, {each.key for each in choice.replayed.values()})
            self._replay.store(step, generation, choice.accepted, graders)
        if self._successes is not None:
            self._successes.store(step, generation, choice.groups, graders)

    def end_step(self, step: int, masked: Mapping[GroupKey, float]) -> dict[str, float]:
        """Give up what cannot be used any more; on the main process, returns the numbers of the stores.

        Args:
            masked: for the groups that the step replayed, the share of their tokens beyond the correction's limits.
        """
        numbers: dict[str, float] = {}
        if not self.is_on or not is_main_process():
            return numbers
        stride = self._schedule.iteration_stride
        following = -(-(step + 1) // stride) * stride
        checkpoints = [each.step for each in complete_checkpoints(self._run)]
        if self._replay is not None:
            chooses = following + self._schedule.staleness * stride
            gone = self._replay.evict(step, chooses, graded_by(self._meta, chooses), checkpoints, masked)
            numbers["replay/evicted"] = float(len(gone))
            numbers["replay/stored"] = float(len(self._replay.stored.state(step + 1)))
        if self._successes is not None:
            self._successes.evict(step, following, checkpoints)
            numbers["successes/remembered"] = float(len(self._successes.stored.state(step + 1)))
        return numbers

    def metrics(self, step: int, choice: Choice) -> dict[str, float]:
        """Numbers of a generation whose training begins; nothing of what is not configured."""
        numbers: dict[str, float] = {}
        replayed = choice.replayed.values()
        if self._config.replay is not None:
            numbers["rollouts/replayed_share"] = len(replayed) / len(choice.datasets)
            numbers["replay/displaced"] = float(len(choice.displaced))
        if replayed:
            numbers["replay/age"] = fmean(step - each.version for each in replayed)
            numbers["replay/uses"] = fmean(each.uses + 1 for each in replayed)
        if self._config.successes is not None:
            numbers["successes/helped_share"] = len(choice.helped) / len(choice.datasets)
        return numbers

    def _open(self, step: int) -> None:
        """Open the stores once, on the main process, in their state after `step` optimizer steps."""
        if self._is_open or not is_main_process():
            return
        self._is_open = True
        config, seed, stride = self._config, self._seed, self._schedule.iteration_stride
        if config.replay is not None:
            self._replay = Replay(config.replay, seed, self._run.path / "replay", stride)
            self._replay.rewind(step)
        if config.successes is not None:
            self._successes = Successes(config.successes, seed, self._run.path / "successes", stride)
            self._successes.rewind(step)
