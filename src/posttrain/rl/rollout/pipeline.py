"""Generate and grade beside training: which weights make which generation is a formula, so that a run repeats."""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from accelerate.utils import gather_object

from posttrain.base.processes import is_main_process, process_count, share_of_rank
from posttrain.errors import ServerError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.rl.rollout.collect.collected import Collected
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.collect.rounds import Rounds
from posttrain.rl.rollout.collect.segments import Segments
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.engines.probe import SyncProbe
from posttrain.rl.rollout.engines.queue import EngineQueue
from posttrain.rl.rollout.grading import Abstention, on_all_ranks
from posttrain.rl.rollout.lanes import Lane
from posttrain.rl.rollout.replay.candidates import Candidates
from posttrain.rl.rollout.rollout import Prompt, Rollout, prompts_of
from posttrain.rl.rollout.store import pending as stored
from posttrain.rl.rollout.store.files import generations_in
from posttrain.train.parallel.ranks import any_rank
from posttrain.train.signals import StopRequest

T = TypeVar("T")
_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass
class Pending:
    """A generation that was asked for.

    Attributes:
        completed: this rank's rollouts, ungraded.
        graded: the same with their results.
        seconds: time spent by activity: `generate`, `grade`, and `engine_idle`, in which the engine had no command
            before this one.
        whole: the graded rollouts of all ranks, once they are gathered.
        candidates: what it may replay.
    """

    version: int
    completed: Future[list[Rollout]]
    graded: Future[list[Rollout]]
    seconds: dict[str, float] = field(default_factory=dict)
    whole: list[Rollout] | None = None
    candidates: Candidates | None = None


class RolloutPipeline:
    """The generations of a run, made with the weights after V(n) = max(0, i(n) − staleness·stride) optimizer steps.

    `advance(s)` publishes the weights after s steps and queues what is made with them; `take(n)` waits for it. With
    `staleness` 0 that is one after the other; with k generations ahead, the engine works on generation n + k while n is
    trained.
    """

    def __init__(
        self,
        opened: OpenedEngine,
        collector: Collector,
        abstention: Abstention,
        max_steps: int,
        *,
        stop_seconds: float = math.inf,
        probe: SyncProbe | None = None,
        making: Rounds | Segments | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            stop_seconds: how long completions are waited for after a request to stop.
            probe: checks the engine each time that it has taken over weights.
            making: what makes generations, if not the collector alone: with substitutes for rejected groups, or with
                completions that are carried over to the next generation.
        """
        self._opened = opened
        self._rounds = making if isinstance(making, Rounds) else None
        self._segments = making if isinstance(making, Segments) else None
        self._stop_seconds = stop_seconds
        self.stop = StopRequest()
        """Tells whether the run was asked to stop."""
        self._collector = collector
        self.schedule, self.max_steps = collector.schedule, max_steps
        self._abstention = abstention
        self._generations = self.schedule.generations_until(max_steps)
        self._queue = EngineQueue(opened, probe, lambda: [each.version for each in list(self._pending.values())])
        # One for each generation that may be under way, so that none waits for another's graders.
        self._graders = [Lane("grading", is_apart=opened.is_apart) for _ in range(self.schedule.staleness + 1)]
        self._pending: dict[int, Pending] = {}
        self._made = -1

    @property
    def engine_facts(self) -> dict[str, Any]:
        """What the manifest says about the engine."""
        return self._opened.facts

    def advance(self, step: int, candidates: Callable[[int, int], Candidates | None] = lambda *_: None) -> None:
        """Queue the generations that are made with the weights after `step` optimizer steps.

        `candidates(step, generation)` gives what each may replay; all ranks call it together.
        """
        self.publish(step)
        for number in self.schedule.made_with(step):
            if number < self._generations and number not in self._pending:
                self._pending[number] = self._begun(number, step, candidates(step, number))

    def publish(self, step: int) -> None:
        """Hand the current weights, those after `step` optimizer steps, to the engine; once per step is enough.

        The engine takes them over when it has done what was asked before.
        """
        self._queue.publish(step)

    def take(self, number: int) -> Collected:
        """Wait for a generation; all ranks call it together, and get all of it. `save` keeps it until `forget`.

        Raises:
            UnavailableError: the dataserver gives no prompts, or no rewards and training may not go on without them;
                or the engine is lost.
        """
        pending = self._pending[number]
        if pending.whole is None:
            ungraded = on_all_ranks(partial(self._awaited, pending.completed))
            iteration = self.schedule.iteration_of(number)
            graded = self._abstention.graded(iteration, partial(self._awaited, pending.graded), ungraded)
            pending.whole = self._gathered(graded)
        return Collected(self._asked(number, pending.whole), pending.whole, pending.seconds, pending.candidates)

    def forget(self, number: int) -> None:
        """Drop a generation, since it is trained now, and the weights that only it needed."""
        del self._pending[number]
        self._collector.finished.pop(number, None)
        self._made = max(self._made, number)
        if self._segments is not None:
            self._segments.forget_before(number)
        self._queue.release()

    def complete(self, step: int, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """Completions by the weights after `step` optimizer steps, which are the current ones.

        Raises:
            ServerError: the engine is lost.
        """
        self.publish(step)
        return self._awaited(self._queue.submit(partial(self._opened.engine.complete, requests, sampling)))

    def save(self, folder: Path | None, step: int, *, is_ending: bool) -> None:
        """Write the generations that the weights after `step` optimizer steps can no longer make.

        All ranks call it together. If the run ends, a generation that does not get ready in time is made after a
        resume, by the weights that it needs, which are written too, but for the completions that have ended by now.

        Args:
            folder: None on all ranks but the first.
        """
        last = self._made
        for number, pending in sorted(self._pending.items()):
            if pending.version < step and self._save(folder, number, pending, is_ending=is_ending):
                last = max(last, number)
            else:
                self._save_finished(folder, number)
        if self._segments is not None:
            carried = self._gathered(self._segments.carried_after(last))
            if folder is not None:
                stored.write_carried(folder, last, carried)

    def _deadline(self, *, is_ending: bool) -> float:
        """Until when completions are waited for, a reading of `time.monotonic`; a request to stop may set it anew."""
        if self.stop.asked_at is None:
            return -math.inf if is_ending else math.inf
        return self.stop.asked_at + self._stop_seconds

    def _is_in_time(self, future: "Future[Any]", *, is_ending: bool = False) -> bool:
        """Wait for a future until the deadline; return whether it is done."""
        while not future.done() and time.monotonic() < self._deadline(is_ending=is_ending):
            wait([future], _SECONDS_BETWEEN_LOOKS)
        return future.done()

    def _awaited(self, future: "Future[T]") -> T:
        """The result of a future; ServerError if the run was asked to stop and it does not come in time."""
        if not self._is_in_time(future):
            raise ServerError("the run was asked to stop while it waited for completions")
        return future.result()

    def restore(self, folder: Path) -> None:
        """Take over what `save` wrote.

        Raises:
            DataError: a file is damaged.
        """
        if self._segments is not None:
            self._made, carried = stored.read_carried(folder)
            self._segments.restore(self._made, carried)
        self._collector.finished.update(stored.read_finished(folder))
        for number in generations_in(folder):
            kept = stored.read(folder, number)
            self._pending[number] = self._restored(number, kept)

    def close(self) -> None:
        """Stop the engine; generations that were not taken are lost."""
        self._queue.close()

    def _save(self, folder: Path | None, number: int, pending: Pending, *, is_ending: bool) -> bool:
        """Write a generation; return whether it was made."""
        waited = [pending.graded, pending.completed]
        self._is_in_time(pending.graded, is_ending=is_ending)
        is_graded, is_completed = (not any_rank(not each.done() or each.exception() is not None) for each in waited)
        if pending.whole is None and is_graded:
            pending.whole = self._gathered(pending.graded.result())
        rollouts = pending.whole
        if rollouts is None and is_completed and self._rounds is None:
            rollouts = self._gathered(pending.completed.result())
        if folder is not None:
            is_graded = pending.whole is not None
            kept = stored.Stored(pending.version, rollouts, is_graded, candidates=pending.candidates)
            if rollouts is None and (found := self._queue.weights(pending.version)) is not None:
                kept = replace(kept, weights=found[0], expected=found[1])
            stored.write(folder, number, kept)
        return rollouts is not None

    def _save_finished(self, folder: Path | None, number: int) -> None:
        """Write the completions of a generation that have ended so far, on any rank."""
        finished = self._collector.finished[number]
        requests = finished.requests()
        mine = [(requests, finished.of(requests))]
        everywhere = FinishedCompletions()
        for theirs, made in mine if process_count() == 1 else gather_object(mine):
            everywhere.extend(theirs, made.items())
        if folder is not None and everywhere.requests():
            stored.write_finished(folder, number, everywhere)

    def _restored(self, number: int, kept: stored.Stored) -> Pending:
        if kept.rollouts is None:
            return self._made_again(number, kept)
        completed: Future[list[Rollout]] = Future()
        if kept.is_graded:
            completed.set_result([])
            return Pending(kept.version, completed, completed, whole=kept.rollouts, candidates=kept.candidates)
        assert self._rounds is None
        completed.set_result([kept.rollouts[number] for number in share_of_rank(len(kept.rollouts))])
        return self._graded_later(number, kept.version, completed, {}, kept.candidates)

    def _made_again(self, number: int, kept: stored.Stored) -> Pending:
        assert kept.weights is not None
        self._queue.adopt(kept.version, kept.weights, kept.expected)
        return self._begun(number, kept.version, kept.candidates)

    def _begun(self, number: int, version: int, candidates: Candidates | None) -> Pending:
        seconds: dict[str, float] = {}
        completed = self._queue.submit(partial(self._complete, number, version, candidates), seconds)
        return self._graded_later(number, version, completed, seconds, candidates)

    def _graded_later(
        self,
        number: int,
        version: int,
        completed: "Future[list[Rollout]]",
        seconds: dict[str, float],
        candidates: Candidates | None,
    ) -> Pending:
        grader = self._graders[number % len(self._graders)]
        graded = grader.submit(partial(self._grade, number, completed, seconds))
        return Pending(version, completed, graded, seconds, candidates=candidates)

    def _complete(self, number: int, version: int, candidates: Candidates | None) -> list[Rollout]:
        if self._rounds is not None:
            return self._rounds.collect(number, version, candidates)
        if self._segments is not None:
            return self._segments.collect(number, version, self._prompts(number))
        asked, empty = self._collector.without_displaced(number, self._prompts(number), candidates)
        made = self._collector.complete(number, version, asked)
        return [*empty, *made] if is_main_process() else made

    def _prompts(self, number: int) -> Sequence[Prompt]:
        ask = partial(self._collector.prompts.of_generation, number)
        return self._opened.exchange.agreed(f"prompts of generation {number}", ask)

    def _grade(self, number: int, completed: "Future[list[Rollout]]", seconds: dict[str, float]) -> list[Rollout]:
        rollouts = completed.result()
        if self._rounds is not None:
            return rollouts
        began = time.perf_counter()
        graded = self._collector.grade(number, rollouts)
        seconds["grade"] = time.perf_counter() - began
        return graded

    def _asked(self, number: int, rollouts: Sequence[Rollout]) -> Sequence[Prompt]:
        """What the curriculum asks in a generation."""
        if self._segments is None:
            return prompts_of(rollouts)
        return on_all_ranks(partial(self._collector.prompts.of_generation, number))

    def _gathered(self, mine: list[Rollout]) -> list[Rollout]:
        """The rollouts of all ranks in the order of their groups; rounds have gathered theirs already."""
        if process_count() == 1 or self._rounds is not None:
            return mine
        return sorted(gather_object(mine), key=lambda each: (each.prompt.group, each.sample))
