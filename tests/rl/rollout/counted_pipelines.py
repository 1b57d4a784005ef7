"""Rollout pipelines without a model or a server, whose engine counts what it makes and gets into trouble when told."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from accelerate.utils import wait_for_everyone

from posttrain.base.processes import is_main_process
from posttrain.dataserver.schemas import Component, GradeItem, GradeResult, Origin
from posttrain.inference.engine import (
    Completion,
    FinishedCompletions,
    GenerationRequest,
    Key,
    RolloutEngine,
    Sampling,
    StopReason,
    derive_seed,
)
from posttrain.inference.weight_sync import PublishedWeights
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.collect.rounds import Rounds
from posttrain.rl.rollout.collect.segments import Segments
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.engines.probe import Answer, Expected, WrongWeightsError
from posttrain.rl.rollout.filters.config import RejectionConfig
from posttrain.rl.rollout.grading import Abstention
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.rollout import Prompt
from posttrain.rl.rollout.selection import Place
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.recipe import UnavailableError

STEPS = 6
_LONGEST = 6
_SUBSTITUTES = {"filters": [{"kind": "mean_reward", "max": 0.25}], "rejected": "substitute", "over_sampling": 1.5}

Trouble = Callable[["CountedEngine", str, int], None]
"""Is told the engine, that it has done a "load" or begins to "complete" a request, and the version of the weights."""


def no_trouble(engine: "CountedEngine", doing: str, version: int) -> None:
    """Let the engine do it."""


class CountedEngine:
    """Samples a completion from the version of the weights, its prompt and its seed, one after another.

    Attributes:
        made: version, prompt and seed of each completion that it made.
        version: of its weights.
        ask_to_stop: does to the run what Ctrl-C does.
    """

    def __init__(self, trouble: Trouble = no_trouble) -> None:
        self.made: list[tuple[int, tuple[int, ...], int]] = []
        self.ask_to_stop: Callable[[], None] = lambda: None
        self.version, self._trouble = -1, trouble

    def made_with(self, version: int) -> int:
        """How many completions it has made with these weights."""
        return sum(each[0] == version for each in self.made)

    def load(self, weights: Path | None, version: int) -> None:
        assert weights is not None
        self.version = int((weights / "version").read_text())
        self._trouble(self, "load", version)

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        finished = finished or FinishedCompletions()
        done = finished.of(requests)
        for place, request in enumerate(requests):
            for number, seed in enumerate(request.seeds):
                if (place, number) not in done:
                    self._trouble(self, "complete", self.version)
                    self.made.append((self.version, request.prompt_ids, seed))
                    finished.add(requests, (place, number), self._sampled(request.prompt_ids, seed, sampling))
        return finished.of(requests)

    def score(self, ids: Sequence[int]) -> list[float]:
        return [float(self.version)]

    def close(self) -> None:
        """Nothing to close."""

    def _sampled(self, prompt_ids: tuple[int, ...], seed: int, sampling: Sampling) -> Completion:
        number = derive_seed(self.version, seed, *prompt_ids)
        ids = tuple((number >> 5 * token) % 30 for token in range(sampling.max_new_tokens))
        return Completion(ids[:2], StopReason.END) if number % 2 else Completion(ids, StopReason.LENGTH)


class VersionProbe:
    """Compares versions."""

    def __init__(self, weights: "VersionedWeights") -> None:
        self._weights = weights

    def expected(self) -> Expected:
        return Expected(np.array([float(self._weights.version)]), np.zeros(1))

    def ask(self, engine: RolloutEngine) -> Answer:
        return Answer(np.array(engine.score([0, 0])), ())

    def check(self, answer: Answer, expected: Expected, version: int) -> None:
        if not answer.logprobs.tolist() == expected.logprobs.tolist() == [version]:
            raise WrongWeightsError(f"the engine has {answer.logprobs} instead of {version}")


class VersionedWeights:
    """Weights that are the number of optimizer steps behind them."""

    size, adapter_rank, version = 10, 0, 0

    def write_once(self, folder: Path) -> None:
        """Write nothing."""

    def write(self, folder: Path) -> None:
        if is_main_process():
            (folder / "version").write_text(str(self.version))


class Prompts:
    """The prompt of a place has its generation, slot and attempt as ids."""

    def __init__(self, schedule: RolloutSchedule) -> None:
        self._slots = range(schedule.prompts_per_iteration)

    def of_generation(self, generation: int) -> list[Prompt]:
        return self.substitutes(generation, [Place(0, slot) for slot in self._slots], "fresh")

    def substitutes(self, generation: int, places: Sequence[Place], origin: Origin = "substitute") -> list[Prompt]:
        return [
            Prompt(
                f"{generation}:{slot}:{attempt}", "a", slot, (generation, slot, attempt), "", False, attempt,
                generation, origin,
            )
            for attempt, slot in places
        ]  # fmt: skip


class Graders:
    """Reward 0 or 1, by the text."""

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        return [_result(item, float(crc32(item.completion.encode()) % 2)) for item in items]


def _result(item: GradeItem, reward: float) -> GradeResult:
    score = Component(score=reward, weight=1.0, status="ok", ms=0.0)
    return GradeResult(item_id=item.item_id, status="ok", reward=reward, reason="", components={"it": score})


class Tokenizer:
    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return str(ids)


@dataclass(frozen=True)
class Case:
    """How generations are made: "alone", with "substitutes", or in "segments", beside the trainer or in its thread."""

    making: str
    staleness: int
    is_apart: bool = True

    def pipeline(
        self, folder: Path, engine: CountedEngine, weights: VersionedWeights, rejection: dict[str, Any] = _SUBSTITUTES
    ) -> RolloutPipeline:
        """A pipeline of steps of 4 groups of 2 completions; `folder` is its run's."""
        schedule = RolloutSchedule(8, 2, staleness=self.staleness)
        sampling = Sampling(max_new_tokens=_LONGEST, temperature=1.0)
        prompts: Any = Prompts(schedule)
        probe: Any = VersionProbe(weights)
        collector = Collector(schedule, prompts, engine, Graders(), Tokenizer(), lambda _: sampling, 0)
        published = PublishedWeights(weights, folder, self.staleness + 2 if self.is_apart else 1)
        opened = OpenedEngine(engine, published, self.is_apart)
        made: Rounds | Segments | None = None
        if self.making == "substitutes":
            made = Rounds(collector, RejectionConfig.model_validate(rejection), opened.exchange)
        elif self.making == "segments":
            made = Segments(collector, 3, _LONGEST)
        return RolloutPipeline(opened, collector, Abstention(0), STEPS, stop_seconds=0, probe=probe, making=made)


@dataclass
class Trained:
    """What a run has trained.

    Attributes:
        steps: of each, its rollouts.
        failure: why it ended before its last step, if it was not asked to.
    """

    steps: list[list[tuple[Any, ...]]]
    failure: str = ""


def train(case: Case, folder: Path, engine: CountedEngine, checkpoint: Path, **options: Any) -> Trained:
    """Train from the checkpoint, if there is one, to the end, or until the run fails or was asked to stop.

    A run that ends before its last step writes the checkpoint.

    Args:
        folder: of the run; another one for each call.
    """
    weights = VersionedWeights()
    pipeline = case.pipeline(folder, engine, weights, **options)
    engine.ask_to_stop = partial(pipeline.stop.ask, signal.SIGINT, None)
    step, trained = 0, Trained([])
    if checkpoint.is_dir():
        step = int((checkpoint / "step").read_text())
        pipeline.restore(checkpoint)
    try:
        while step < STEPS and not pipeline.stop.on_any_rank():
            weights.version = step
            pipeline.advance(step)
            made = pipeline.take(step).rollouts
            pipeline.forget(step)
            trained.steps.append(
                [
                    (each.prompt.sample_id, each.sample, each.ids.tolist(), each.versions.tolist(), each.reward)
                    for each in made
                ]
            )
            step += 1
    except UnavailableError as error:
        trained.failure = str(error)
    if step < STEPS:
        if is_main_process():
            checkpoint.mkdir()
            (checkpoint / "step").write_text(str(step))
        pipeline.save(checkpoint if is_main_process() else None, step, is_ending=True)
    wait_for_everyone()  # as the training loop does, before a rank removes the weights of all
    pipeline.close()
    return trained
