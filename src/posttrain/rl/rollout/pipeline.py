"""Generate and grade beside training: which weights make which generation is a formula, so that a run repeats.

One queue of commands per engine: load weights, evaluate, generate. Each command starts when the one before has ended,
and what it does depends on their order alone, never on time.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from accelerate.utils import gather_object

from posttrain.base.processes import process_count
from posttrain.inference.engine import Completion, GenerationRequest, Key, Sampling
from posttrain.rl.rollout.collector import Collector
from posttrain.rl.rollout.engines import OpenedEngine
from posttrain.rl.rollout.grading import Abstention, on_all_ranks
from posttrain.rl.rollout.lanes import Lane
from posttrain.rl.rollout.rollout import Rollout
from posttrain.train.memory import Phase, during

_ELSEWHERE = "another process could not get its completions"


@dataclass
class Pending:
    """A generation that was asked for.

    Attributes:
        completed: this rank's rollouts, ungraded.
        graded: the same with their results.
        seconds: time spent by activity: `generate`, `grade`, and `engine_idle`, in which the engine had no command
            before this one.
    """

    version: int
    completed: Future[list[Rollout]]
    graded: Future[list[Rollout]]
    seconds: dict[str, float] = field(default_factory=dict)


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

    def __init__(self, opened: OpenedEngine, collector: Collector, abstention: Abstention, max_steps: int) -> None:
        self._opened = opened
        self._collector = collector
        self.schedule = collector.schedule
        self._abstention = abstention
        self._generations = self.schedule.generations_until(max_steps)
        self._engine = Lane("rollout engine", is_apart=opened.is_apart)
        # One for each generation that may be under way, so that none waits for another's graders.
        self._graders = [Lane("grading", is_apart=opened.is_apart) for _ in range(self.schedule.staleness + 1)]
        self._pending: dict[int, Pending] = {}
        self._version = -1
        self._loaded: Future[None] = Future()
        self._idle_since = time.perf_counter()

    def advance(self, step: int) -> None:
        """Queue the generations that are made with the weights after `step` optimizer steps."""
        self.publish(step)
        for number in self.schedule.made_with(step):
            if number < self._generations and number not in self._pending:
                self._begin(number, step)

    def publish(self, step: int) -> None:
        """Hand the current weights, those after `step` optimizer steps, to the engine; once per step is enough.

        The engine takes them over when it has done what was asked before.
        """
        if self._version == step:
            return
        with during(Phase.ENGINE, f"while the weights after optimizer step {step} were written for the engine"):
            published = self._opened.published
            folder = None if published is None else published.publish(step)
        self._version = step
        self._loaded = self._engine.submit(partial(self._load, folder, step))

    def take(self, number: int) -> Collected:
        """Wait for a generation; all ranks call it together, and get all of it.

        Raises:
            UnavailableError: the dataserver gives no prompts, or no rewards and training may not go on without them;
                or the engine is lost.
        """
        pending = self._pending.pop(number)
        ungraded = on_all_ranks(pending.completed.result, _ELSEWHERE)
        iteration = self.schedule.iteration_of(number)
        graded = self._abstention.graded(iteration, pending.graded.result, ungraded)
        # Each rank has made an equal share of the whole, in rank order.
        return Collected(graded if process_count() == 1 else gather_object(graded), pending.seconds)

    def complete(self, step: int, requests: Sequence[GenerationRequest], sampling: Sampling) -> dict[Key, Completion]:
        """Completions by the weights after `step` optimizer steps, which are the current ones.

        Raises:
            ServerError: the engine is lost.
        """
        self.publish(step)
        loaded = self._loaded
        return self._engine.submit(partial(self._answer, loaded, requests, sampling)).result()

    def close(self) -> None:
        """Stop the engine; generations that were not taken are lost."""
        self._opened.close()

    def _begin(self, number: int, version: int) -> None:
        seconds: dict[str, float] = {}
        completed = self._engine.submit(partial(self._complete, self._loaded, number, version, seconds))
        grader = self._graders[number % len(self._graders)]
        graded = grader.submit(partial(self._grade, number, completed, seconds))
        self._pending[number] = Pending(version, completed, graded, seconds)

    def _load(self, folder: Path | None, version: int) -> None:
        """Load weights, and release those that no command needs any more."""
        began = time.perf_counter()
        with during(Phase.ENGINE, f"while the engine received the weights after optimizer step {version}"):
            self._opened.engine.load(folder, version)
        if self._opened.published is not None:
            # An engine in a process of its own needs the weights once more if it must be started again.
            self._opened.published.release(version - 1 if self._opened.is_apart else version)
        self._idle_since += time.perf_counter() - began

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
        made = self._collector.complete(number, version)
        self._idle_since = time.perf_counter()
        seconds["generate"] = self._idle_since - began
        return made

    def _grade(self, number: int, completed: "Future[list[Rollout]]", seconds: dict[str, float]) -> list[Rollout]:
        rollouts = completed.result()
        began = time.perf_counter()
        graded = self._collector.grade(number, rollouts)
        seconds["grade"] = time.perf_counter() - began
        return graded
