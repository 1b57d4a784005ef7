"""How many versions of the weights the queue of an engine keeps at once."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.weight_sync import PublishedWeights
from posttrain.rl.rollout.config import RolloutConfig
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.engines.queue import EngineQueue
from posttrain.rl.schedule import RolloutSchedule


class SmallWeights:
    """Weights of a few bytes."""

    size, adapter_rank = 10, 0

    def write_once(self, folder: Path) -> None:
        """Write nothing."""

    def write(self, folder: Path) -> None:
        (folder / "weights").write_text("any")


class SlowEngine:
    """An engine that loads no version beyond `upto` before it is told so."""

    def __init__(self, upto: int) -> None:
        self._upto, self._changed = upto, threading.Condition()
        self.kept = 0
        """The most folders that there were when it loaded one."""

    def allow(self, version: int) -> None:
        """Let it load the versions up to this one."""
        with self._changed:
            self._upto = max(self._upto, version)
            self._changed.notify()

    def load(self, weights: Path | None, version: int) -> None:
        """Wait to be allowed to, and look whether the weights are there."""
        with self._changed:
            assert self._changed.wait_for(lambda: version <= self._upto, timeout=30)
        assert weights is not None and (weights / "weights").is_file()
        self.kept = max(self.kept, len([*weights.parent.iterdir()]))

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        """Not asked here."""
        raise NotImplementedError

    def score(self, ids: Sequence[int]) -> list[float]:
        """Not asked here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(
    ("keys", "most"),
    [
        ({"placement": "process"}, 1),
        ({"placement": "child"}, 2),
        ({"staleness": 1}, 3),
        ({"staleness": 2}, 4),
        ({"staleness": 3}, 5),
    ],
    ids=str,
)
def test_as_many_versions_of_the_weights_are_kept_as_there_must_be_room_for(
    keys: dict[str, object], most: int, stride: int, tmp_path: Path
) -> None:
    config = RolloutConfig.model_validate({**keys, "steps_per_generation": stride})
    schedule = RolloutSchedule(4, 2, steps_per_generation=stride, staleness=config.staleness)
    published = PublishedWeights(SmallWeights(), tmp_path, config.weight_versions)
    folder = published.start().parent
    if not config.is_apart:
        published.release(-1)
    # The slowest engine that the trainer does not wait for.
    engine = SlowEngine(-1 if config.is_apart else 1000)
    pending: dict[int, tuple[int, Future[None]]] = {}
    queue = EngineQueue(
        OpenedEngine(engine, published, config.is_apart), None, lambda: [version for version, _ in [*pending.values()]]
    )
    kept = 0
    for generation in range(8):
        step = schedule.iteration_of(generation)
        queue.publish(step)
        kept = max(kept, len([*folder.iterdir()]))
        for number in schedule.made_with(step):
            pending[number] = (step, queue.submit(lambda: None))
        version, made = pending[generation]
        engine.allow(version)
        made.result(timeout=30)
        del pending[generation]
        queue.release()
    queue.close()
    assert max(kept, engine.kept) == most == config.weight_versions
