"""Generate and grade beside training: which weights make which generation is a formula, so that a run repeats.

One queue of commands per engine: load weights, evaluate, generate. Each command starts when the one before has ended,
and what it does depends on their order alone, never on time.
"""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from accelerate.utils import gather_object

from posttrain.base.processes import process_count, process_rank
from posttrain.errors import ServerError
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.rl.rollout.collector import Collector
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.engines.probe import Expected, SyncProbe
from posttrain.rl.rollout.grading import Abstention, on_all_ranks
from posttrain.rl.rollout.lanes import Lane
from posttrain.rl.rollout.rollout import Rollout
from posttrain.rl.rollout.rounds import Rounds
from posttrain.rl.rollout.store import pending as stored
from posttrain.rl.rollout.store.files import generations_in
from posttrain.train.memory import Phase, during
from posttrain.train.parallel import any_rank
from posttrain.train.signals import StopRequest

T = TypeVar("T")
_SECONDS_BETWEEN_LOOKS = 0.2
_ELSEWHERE = "another process could not get its completions"


@dataclass
class Pending:
    """A generation that was asked for.

    Attributes:
        completed: this rank's rollouts, ungraded.
        graded: the same with their results.
        seconds: time spent by activity: `generate`, `grade`, and `engine_idle`, in which the engine had no command
            before this one.
        whole: the graded rollouts of all ranks, once they are gathered.
    """

    version: int
    completed: Future[list[Rollout]]
    graded: Future[list[Rollout]]
    seconds: dict[str, float] = field(default_factory=dict)
    whole: list[Rollout] | None = None


@dataclass(frozen=True)
class Collected:
    """A generation on all ranks: its rollouts in slot order, and the seconds that this rank spent on it."""

    rollouts: list[Rollout]
    seconds: dict[str, float]


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
        rounds: Rounds | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            stop_seconds: how long completions are waited for after a request to stop.
            probe: checks the engine each time that it has taken over weights.
            rounds: asks substitutes for rejected groups; None if there are none.
        """
        self._opened, self._probe, self._rounds = opened, probe, rounds
        self._stop_seconds = stop_seconds
        self.stop = StopRequest()
        """Tells whether the run was asked to stop."""
        self._collector = collector
        self.schedule = collector.schedule
        self._abstention = abstention
        self._generations = self.schedule.generations_until(max_steps)
        self._engine = Lane("rollout engine", is_apart=opened.is_apart)
        # One for each generation that may be under way, so that none waits for another's graders.
        self._graders = [Lane("grading", is_apart=opened.is_apart) for _ in range(self.schedule.staleness + 1)]
        self._pending: dict[int, Pending] = {}
        self._version = self._engine_version = -1
        self._expected: dict[int, Expected | None] = {}  # by version, as long as a generation may need it
        self._loaded: Future[None] = Future()
        self._idle_since = time.perf_counter()

    def advance(self, step: int) -> None:
        """Queue the generations that are made with the weights after `step` optimizer steps."""
        self.publish(step)
        for number in self.schedule.made_with(step):
            if number < self._generations and number not in self._pending:
                self._pending[number] = self._begun(number, step)

    def publish(self, step: int) -> None:
        """Hand the current weights, those after `step` optimizer steps, to the engine; once per step is enough.

        The engine takes them over when it has done what was asked before.
        """
        if self._version == step:
            return
        with during(Phase.ENGINE, f"while the weights after optimizer step {step} were written for the engine"):
            published = self._opened.published
            folder = None if published is None else published.publish(step)
        with during(Phase.SCORE, f"while a fixed text was scored after optimizer step {step}"):
            expected = None if self._probe is None else self._probe.expected()
        self._hand_over(folder, step, expected)

    def _hand_over(self, folder: Path | None, version: int, expected: Expected | None) -> None:
        """Queue the load of weights, and remember what the training model computes with them."""
        needed = {each.version for each in self._pending.values()}
        self._expected = {each: told for each, told in self._expected.items() if each in needed} | {version: expected}
        self._version = version
        self._loaded = self._engine.submit(partial(self._load, folder, version, expected))

    def take(self, number: int) -> Collected:
        """Wait for a generation; all ranks call it together, and get all of it.

        Raises:
            UnavailableError: the dataserver gives no prompts, or no rewards and training may not go on without them;
                or the engine is lost.
        """
        pending = self._pending[number]
        if pending.whole is None:
            ungraded = on_all_ranks(partial(self._awaited, pending.completed), _ELSEWHERE)
            iteration = self.schedule.iteration_of(number)
            graded = self._abstention.graded(iteration, partial(self._awaited, pending.graded), ungraded)
            pending.whole = self._gathered(graded)
        del self._pending[number]
        self._release()
        return Collected(pending.whole, pending.seconds)

    def complete(self, step: int, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """Completions by the weights after `step` optimizer steps, which are the current ones.

        Raises:
            ServerError: the engine is lost.
        """
        self.publish(step)
        loaded = self._loaded
        return self._awaited(self._engine.submit(partial(self._answer, loaded, requests, sampling)))

    def save(self, folder: Path | None, step: int, *, is_ending: bool) -> None:
        """Write the generations that the weights after `step` optimizer steps can no longer make.

        All ranks call it together. If the run ends, what does not get ready in time is made again after a resume, by
        the weights that it needs, which are written too.

        Args:
            folder: None on all ranks but the first.
        """
        deadline = self._deadline() if self.stop.asked_at is not None or not is_ending else time.monotonic()
        for number, pending in sorted(self._pending.items()):
            if pending.version < step:
                self._save(folder, number, pending, deadline)

    def _deadline(self) -> float:
        """Until when completions are waited for, a reading of `time.monotonic`."""
        return math.inf if self.stop.asked_at is None else self.stop.asked_at + self._stop_seconds

    def _awaited(self, future: "Future[T]") -> T:
        """The result of a future; ServerError if the run was asked to stop and it does not come in time."""
        while not future.done():
            wait([future], _SECONDS_BETWEEN_LOOKS)
            if not future.done() and time.monotonic() >= self._deadline():
                raise ServerError("the run was asked to stop while it waited for completions")
        return future.result()

    def restore(self, folder: Path) -> None:
        """Take over what `save` wrote.

        Raises:
            DataError: a file is damaged.
        """
        for number in generations_in(folder):
            kept = stored.read(folder, number)
            self._pending[number] = self._restored(number, kept)

    def close(self) -> None:
        """Stop the engine; generations that were not taken are lost."""
        self._opened.close()

    def _save(self, folder: Path | None, number: int, pending: Pending, deadline: float) -> None:
        waited = [pending.graded, pending.completed]
        wait([pending.graded], max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))
        is_graded, is_completed = (not any_rank(not each.done() or each.exception() is not None) for each in waited)
        if pending.whole is None and is_graded:
            pending.whole = self._gathered(pending.graded.result())
        rollouts = pending.whole
        if rollouts is None and is_completed and self._rounds is None:
            rollouts = self._gathered(pending.completed.result())
        if folder is None:
            return
        kept = stored.Stored(pending.version, rollouts, is_graded=pending.whole is not None)
        if rollouts is None and self._opened.published is not None:
            weights = self._opened.published.folder(pending.version)
            kept = replace(kept, weights=weights, expected=self._expected[pending.version])
        stored.write(folder, number, kept)

    def _restored(self, number: int, kept: stored.Stored) -> Pending:
        if kept.rollouts is None:
            return self._made_again(number, kept)
        completed: Future[list[Rollout]] = Future()
        if kept.is_graded:
            completed.set_result([])
            return Pending(kept.version, completed, completed, whole=kept.rollouts)
        assert self._rounds is None
        share = len(kept.rollouts) // process_count()
        completed.set_result(kept.rollouts[process_rank() * share : (process_rank() + 1) * share])
        return self._graded_later(number, kept.version, completed, {})

    def _made_again(self, number: int, kept: stored.Stored) -> Pending:
        assert kept.weights is not None and self._opened.published is not None
        if self._version != kept.version:
            folder = self._opened.published.adopt(kept.version, kept.weights)
            self._hand_over(folder, kept.version, kept.expected)
        return self._begun(number, kept.version)

    def _begun(self, number: int, version: int) -> Pending:
        seconds: dict[str, float] = {}
        completed = self._engine.submit(partial(self._complete, self._loaded, number, version, seconds))
        return self._graded_later(number, version, completed, seconds)

    def _graded_later(
        self, number: int, version: int, completed: "Future[list[Rollout]]", seconds: dict[str, float]
    ) -> Pending:
        grader = self._graders[number % len(self._graders)]
        graded = grader.submit(partial(self._grade, number, completed, seconds))
        return Pending(version, completed, graded, seconds)

    def _load(self, folder: Path | None, version: int, expected: Expected | None) -> None:
        """Load weights, check that the engine uses them, and release those that no command needs any more."""
        began = time.perf_counter()
        with during(Phase.ENGINE, f"while the engine received the weights after optimizer step {version}"):
            self._opened.engine.load(folder, version)
        self._engine_version = version
        self._release()
        if self._probe is not None and expected is not None:
            self._probe.check(self._opened.engine, expected, version)
        self._idle_since += time.perf_counter() - began

    def _release(self) -> None:
        """Release the weights that neither a restart of the engine nor a generation that may be made again needs."""
        if self._opened.published is None or self._engine_version < 0:
            return
        needed = [self._engine_version, *(each.version for each in list(self._pending.values()))]
        self._opened.published.release(min(needed) - 1 if self._opened.is_apart else self._engine_version)

    def _answer(
        self, loaded: "Future[None]", requests: Sequence[GenerationRequest], sampling: Sampling
    ) -> dict[Key, Completion]:
        loaded.result()
        answers = self._opened.engine.complete(requests, sampling)
        self._idle_since = time.perf_counter()
        return answers

    def _complete(self, loaded: "Future[None]", number: int, version: int, seconds: dict[str, float]) -> list[Rollout]:
        loaded.result()  # has ended, or failed
        began = time.perf_counter()
        seconds["engine_idle"] = began - self._idle_since
        if self._rounds is not None:
            made = self._rounds.collect(number, version)
        else:
            made = self._collector.complete(number, version, self._collector.prompts.of_generation(number))
        self._idle_since = time.perf_counter()
        seconds["generate"] = self._idle_since - began
        return made

    def _grade(self, number: int, completed: "Future[list[Rollout]]", seconds: dict[str, float]) -> list[Rollout]:
        rollouts = completed.result()
        if self._rounds is not None:
            return rollouts
        began = time.perf_counter()
        graded = self._collector.grade(number, rollouts)
        seconds["grade"] = time.perf_counter() - began
        return graded

    def _gathered(self, mine: list[Rollout]) -> list[Rollout]:
        """The rollouts of all ranks, in rank order; rounds have gathered theirs already."""
        return mine if process_count() == 1 or self._rounds is not None else gather_object(mine)
