"""A rollout engine's queue of commands: load weights, check that they arrived, generate.

Each command starts when the one before has ended, and what it does depends on their order alone, never on time.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TypeVar

from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.engines.probe import Answer, Expected, SyncProbe
from posttrain.rl.rollout.lanes import Lane
from posttrain.train.memory import Phase, during

T = TypeVar("T")


class EngineQueue:
    """The commands of one engine."""

    def __init__(self, opened: OpenedEngine, probe: SyncProbe | None, needed: Callable[[], Iterable[int]]) -> None:
        """Start with nothing to do.

        Args:
            probe: checks the engine each time that it has taken over weights.
            needed: the versions of weights by which something is made, or may have to be made again.
        """
        self._opened, self._probe, self._needed = opened, probe, needed
        self._lane = Lane("rollout engine", is_apart=opened.is_apart)
        self._asked_version = self._engine_version = -1
        self._expected: dict[int, Expected | None] = {}
        self._loaded: Future[None] = Future()
        self._idle_since = time.perf_counter()

    def publish(self, step: int) -> None:
        """Hand the current weights, those after `step` optimizer steps, to the engine; once per step is enough."""
        if self._asked_version == step:
            return
        with during(Phase.ENGINE, f"while the weights after optimizer step {step} were written for the engine"):
            published = self._opened.published
            folder = None if published is None else published.publish(step)
        self._hand_over(folder, step, partial(self._compute_expected, step))

    def adopt(self, version: int, weights: Path, expected: Expected | None) -> None:
        """Hand weights from a checkpoint to the engine."""
        if self._asked_version != version:
            assert self._opened.published is not None
            self._hand_over(self._opened.published.adopt(version, weights), version, lambda: expected)

    def weights(self, version: int) -> tuple[Path, Expected | None] | None:
        """The folder of needed weights and what they should compute; None if the engine has no weights of its own."""
        published = self._opened.published
        return None if published is None else (published.folder(version), self._expected[version])

    def submit(self, call: Callable[[], T], seconds: dict[str, float] | None = None) -> "Future[T]":
        """Run a call when the engine has the weights that were handed over last.

        `seconds` gets its own, `generate`, and those before it in which the engine had no command, `engine_idle`.
        """
        return self._lane.submit(partial(self._timed, self._loaded, call, {} if seconds is None else seconds))

    def release(self) -> None:
        """Release the weights that neither a restart of the engine nor anything that may be made again needs."""
        if self._opened.published is None or self._engine_version < 0:
            return
        oldest = min([self._engine_version, *self._needed()])
        self._opened.published.release(oldest - 1 if self._opened.is_apart else self._engine_version)

    def close(self) -> None:
        """Stop the engine."""
        self._opened.close()

    def _hand_over(self, folder: Path | None, version: int, expected: Callable[[], Expected | None]) -> None:
        """Queue the load of weights and its check, and remember what the training model computes with them."""
        # An engine apart loads and is asked meanwhile; one in this process may leave less memory once it has loaded.
        before = None if self._opened.is_apart else expected()
        asked = self._lane.submit(partial(self._load_and_ask, folder, version))
        told = expected() if self._opened.is_apart else before
        check = partial(self._check, asked, told, version)
        # Ranks may have to generate together, so none starts if another cannot.
        self._loaded = self._lane.submit(partial(self._opened.exchange.agreed, f"weights {version}", check))
        self._asked_version = version
        needed = set(self._needed())
        self._expected = {each: kept for each, kept in self._expected.items() if each in needed} | {version: told}

    def _compute_expected(self, step: int) -> Expected | None:
        with during(Phase.SCORE, f"while a fixed text was scored after optimizer step {step}"):
            return None if self._probe is None else self._probe.expected()

    def _load_and_ask(self, folder: Path | None, version: int) -> Answer | None:
        """Load weights, release those that nothing needs any more, and return what the engine answers to the probe."""
        began = time.perf_counter()
        with during(Phase.ENGINE, f"while the engine received the weights after optimizer step {version}"):
            self._opened.engine.load(folder, version)
        self._engine_version = version
        self.release()
        answer = None if self._probe is None else self._probe.ask(self._opened.engine)
        self._idle_since += time.perf_counter() - began
        return answer

    def _check(self, asked: "Future[Answer | None]", expected: Expected | None, version: int) -> None:
        """Check that the engine uses the weights that it loaded."""
        answer = asked.result()  # has ended, or failed
        if self._probe is not None and answer is not None and expected is not None:
            self._probe.check(answer, expected, version)

    def _timed(self, loaded: "Future[None]", call: Callable[[], T], seconds: dict[str, float]) -> T:
        loaded.result()  # has ended, or failed
        began = time.perf_counter()
        seconds["engine_idle"] = began - self._idle_since
        made = call()
        self._idle_since = time.perf_counter()
        seconds["generate"] = self._idle_since - began
        return made
