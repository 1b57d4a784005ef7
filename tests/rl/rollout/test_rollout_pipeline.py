"""Which weights make which generation is a formula, whatever takes how long."""

import random
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain.dataserver.schemas import GradeItem, GradeResult
from posttrain.errors import ModelError, RunError, ServerError, ToolkitError
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling, StopReason
from posttrain.rl.rollout.collect.collector import Collector
from posttrain.rl.rollout.engines.open import OpenedEngine
from posttrain.rl.rollout.grading import Abstention
from posttrain.rl.rollout.pipeline import RolloutPipeline
from posttrain.rl.rollout.rollout import Prompt
from posttrain.rl.rollout.store import pending as stored
from posttrain.rl.schedule import RolloutSchedule
from posttrain.train.recipe import UnavailableError
from rl.rl_recipes import WrittenServer

STEPS = 12


class SlowEngine:
    """Says which weights it has, after a random while."""

    def __init__(self, draw: random.Random, fails_at: int = -1, failure: type[ToolkitError] = ServerError) -> None:
        self.version, self._draw, self._fails_at, self._failure = -1, draw, fails_at, failure

    def load(self, weights: Path | None, version: int) -> None:
        time.sleep(self._draw.uniform(0, 0.002))
        if version == self._fails_at:
            raise self._failure("the weights are lost")
        self.version = version

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        time.sleep(self._draw.uniform(0, 0.004))
        return {
            (place, number): Completion((self.version + 100,), StopReason.LENGTH)
            for place, request in enumerate(requests)
            for number in range(request.n)
        }

    def score(self, ids: Sequence[int]) -> list[float]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class SlowServer(WrittenServer):
    def __init__(self, draw: random.Random) -> None:
        super().__init__([0.5] * 100)
        self._draw = draw

    def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
        time.sleep(self._draw.uniform(0, 0.004))
        return super().grade(iteration, label, items)


class Prompts:
    def __init__(self, schedule: RolloutSchedule) -> None:
        self._slots = range(schedule.prompts_per_iteration)

    def of_generation(self, generation: int) -> list[Prompt]:
        return [Prompt(f"{generation}:{slot}", "a", slot, (generation, 7), "text", False) for slot in self._slots]


class Tokenizer:
    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return str(ids)


class NotedProbe:
    """Notes the order in which it is used; `expected` takes until the engine was asked, or gives up."""

    def __init__(self, patience: float = 10.0) -> None:
        self.done: list[str] = []
        self._patience = patience
        self._asked = threading.Event()

    def ask(self, engine: SlowEngine) -> int:
        self.done.append("asked")
        self._asked.set()
        return engine.version

    def expected(self) -> int:
        self._asked.wait(self._patience)
        self._asked.clear()
        self.done.append("expected")
        return 0

    def check(self, answer: int, expected: int, version: int) -> None:
        assert answer == version
        self.done.append("checked")


def a_pipeline(
    schedule: RolloutSchedule,
    seed: int,
    fails_at: int = -1,
    failure: type[ToolkitError] = ServerError,
    *,
    server: SlowServer | None = None,
    is_apart: bool = True,
    **options: Any,
) -> RolloutPipeline:
    draw = random.Random(seed)
    engine, prompts = SlowEngine(draw, fails_at, failure), Prompts(schedule)
    sampling = Sampling(max_new_tokens=8, temperature=1.0)
    source: Any = prompts
    collector = Collector(schedule, source, engine, server or SlowServer(draw), Tokenizer(), lambda _: sampling, 0)
    return RolloutPipeline(OpenedEngine(engine, None, is_apart=is_apart), collector, Abstention(0), STEPS, **options)


@given(staleness=st.integers(0, 4), parts=st.integers(1, 2), passes=st.integers(1, 2), seed=st.integers(0, 2**32))
@settings(max_examples=50)
def test_recorded_versions_are_those_of_the_formula_whatever_takes_how_long(
    staleness: int, parts: int, passes: int, seed: int
) -> None:
    schedule = RolloutSchedule(4, 2, parts, passes, staleness)
    pipeline, draw = a_pipeline(schedule, seed), random.Random(seed + 1)
    stride = parts * passes
    for step in range(0, STEPS, stride):
        pipeline.advance(step)
        made = pipeline.take(step // stride).rollouts
        pipeline.forget(step // stride)
        version = max(0, step - staleness * stride)
        assert {int(each.versions[0]) for each in made} == {version}
        assert {int(each.ids[0]) for each in made} == {version + 100}  # what the engine had indeed
        assert [each.prompt.sample_id for each in made[::2]] == [
            f"{step // stride}:{slot}" for slot in range(schedule.prompts_per_iteration)
        ]
        time.sleep(draw.uniform(0, 0.004))


@pytest.mark.parametrize(
    ("staleness", "stride", "versions"),
    [
        (0, 1, [0, 1, 2, 3, 4, 5]),
        (1, 1, [0, 0, 1, 2, 3, 4]),
        (2, 1, [0, 0, 0, 1, 2, 3]),
        (1, 2, [0, 0, 2, 4, 6, 8]),
    ],
)
def test_the_formula_by_hand(staleness: int, stride: int, versions: list[int]) -> None:
    schedule = RolloutSchedule(4, 2, stride, staleness=staleness)
    assert [schedule.version_of(number) for number in range(6)] == versions
    made = [(version, number) for version in range(0, 20, stride) for number in schedule.made_with(version)]
    assert [version for version, number in sorted(made, key=lambda pair: pair[1])][:6] == versions


@pytest.mark.parametrize("failure", [ServerError, RunError, ModelError])
def test_weights_that_the_engine_cannot_take_stop_the_run_before_anything_is_made_with_them(
    failure: type[ToolkitError],
) -> None:
    pipeline = a_pipeline(RolloutSchedule(4, 2, staleness=1), 0, 1, failure)
    for step in (0, 1):
        pipeline.advance(step)
        pipeline.take(step)
        pipeline.forget(step)
    pipeline.advance(2)
    with pytest.raises(UnavailableError, match="the weights are lost"):
        pipeline.take(2)


@pytest.mark.parametrize(
    ("is_apart", "order"), [(True, ["asked", "expected", "checked"]), (False, ["expected", "asked", "checked"])]
)
def test_an_engine_apart_is_asked_while_the_trainer_computes_what_to_expect(is_apart: bool, order: list[str]) -> None:
    probe = NotedProbe(patience=10.0 if is_apart else 0.0)
    pipeline = a_pipeline(RolloutSchedule(4, 2), 0, probe=probe, is_apart=is_apart)
    for step in (0, 1):
        pipeline.advance(step)
        pipeline.take(step)
        pipeline.forget(step)
        assert probe.done == (step + 1) * order


def test_nothing_is_made_by_an_engine_that_fails_the_probe() -> None:
    class StrictProbe(NotedProbe):
        def check(self, answer: int, expected: int, version: int) -> None:
            raise ServerError("these are other weights")

    pipeline = a_pipeline(RolloutSchedule(4, 2, staleness=1), 0, probe=StrictProbe())
    pipeline.advance(0)
    with pytest.raises(UnavailableError, match="other weights"):
        pipeline.take(0)


def test_ctrl_c_while_a_checkpoint_waits_for_slow_graders_is_heeded(tmp_path: Path) -> None:
    graded = threading.Event()

    class SlowAfterTheFirst(SlowServer):
        def grade(self, iteration: int, label: str, items: Sequence[GradeItem]) -> list[GradeResult]:
            if label.endswith("-1"):  # generation 1
                graded.wait(20)
            return super().grade(iteration, label, items)

    server = SlowAfterTheFirst(random.Random(0))
    pipeline = a_pipeline(RolloutSchedule(4, 2, staleness=1), 0, server=server, stop_seconds=0.5)
    pipeline.advance(0)
    pipeline.take(0)
    timer = threading.Timer(0.3, pipeline.stop.ask, (signal.SIGINT, None))
    timer.start()
    pipeline.save(tmp_path, 1, is_ending=False)
    timer.join()
    graded.set()
    kept = stored.read(tmp_path, 1)
    assert (kept.rollouts is None, kept.is_graded) == (False, False)
