"""The probe finds an engine with stale weights, a stale cache or other log-probabilities before anything is trained."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.hf import HfBackend
from posttrain.rl.rollout.engines.probe import Answer, Evidence, Expected, SyncProbe, WrongWeightsError
from sharp_model import write_sharp_model


@pytest.fixture(scope="module")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")


SETTINGS = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=False, seed=0)


def load(model: Path) -> LoadedModel:
    config = ModelConfig(name=str(model), dtype="float32")
    return HfBackend().load_for_training(config, LoraConfig(r=4), settings=SETTINGS)


class Engine(LoadedModelEngine):
    """A sound engine."""


class HotEngine(LoadedModelEngine):
    """Returns log-probabilities at temperature 1, whatever it samples at."""

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        return super().complete(requests, replace(sampling, temperature=1.0), finished)


class CachingEngine(LoadedModelEngine):
    """Continues a prompt by the answer that it once gave."""

    _cache: dict[Key, Completion] | None = None

    def complete(
        self,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        finished: FinishedCompletions | None = None,
    ) -> dict[Key, Completion]:
        self._cache = self._cache or super().complete(requests, sampling, finished)
        return self._cache


def change(loaded: LoadedModel, by: float) -> None:
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data += by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))


def in_16_bits(loaded: LoadedModel) -> LoadedModel:
    """The model, which computes in float32, as one of which that is not expected."""
    return replace(loaded, compute_dtype=torch.bfloat16)


def probed(kind: type[LoadedModelEngine], sharp_model: Path, *, stale: bool = False, by: float = 0.5) -> None:
    """Probe an engine before and after a step of training; a stale one has a model of its own that is not trained."""
    trained = load(sharp_model)
    engine = kind(load(sharp_model) if stale else trained, frozenset({2}), 8)
    probe = SyncProbe(trained, 200)
    probe.check(probe.ask(engine), probe.expected(), 0)
    change(trained, by)
    probe.check(probe.ask(engine), probe.expected(), 1)


def test_an_engine_with_the_right_weights_passes(sharp_model: Path) -> None:
    probed(Engine, sharp_model)


def test_an_engine_that_keeps_its_weights_is_found(sharp_model: Path) -> None:
    with pytest.raises(WrongWeightsError, match="after optimizer step 1"):
        probed(Engine, sharp_model, stale=True)


def test_a_cache_of_older_weights_is_found(sharp_model: Path) -> None:
    with pytest.raises(WrongWeightsError, match="samples at temperature"):
        probed(CachingEngine, sharp_model)


def test_log_probabilities_that_are_not_at_the_sampling_temperature_are_found(sharp_model: Path) -> None:
    with pytest.raises(WrongWeightsError, match="after optimizer step 0"):
        probed(HotEngine, sharp_model)


def test_in_16_bits_weights_that_stay_are_found_once_their_changes_add_up(sharp_model: Path) -> None:
    trained = load(sharp_model)
    engine = LoadedModelEngine(load(sharp_model), frozenset({2}), 8)
    probe = SyncProbe(in_16_bits(trained), 200)
    with pytest.raises(WrongWeightsError, match="computes exactly what it did"):
        for version in range(1000):
            probe.check(probe.ask(engine), probe.expected(), version)
            change(trained, 0.0005)


def expected(logprobs: np.ndarray) -> Expected:
    return Expected(logprobs, np.log(np.full(4, 0.25)))


def answer(logprobs: np.ndarray) -> Answer:
    """Of an engine whose sampled tokens are as expected."""
    return Answer(logprobs, ((2, math.log(0.25)),))


def test_in_16_bits_an_engine_that_stays_one_version_behind_is_found(sharp_model: Path) -> None:
    probe, draw = SyncProbe(in_16_bits(load(sharp_model)), 200), np.random.default_rng(0)
    # By 0.08 nats on average from one version to the next, where 0.15 is allowed.
    versions = np.cumsum(draw.normal(0, 0.1, (9, 135)), axis=0) - 2
    with pytest.raises(WrongWeightsError, match="behind the weights after optimizer step"):
        for version in range(1, 9):
            probe.check(answer(versions[version - 1]), expected(versions[version]), version)


def test_a_copy_of_the_model_scores_as_the_model_does_in_16_bits_too(sharp_model: Path) -> None:
    trained, scores = in_16_bits(load(sharp_model)), np.full(135, -2.0)
    SyncProbe(trained, 200).check(answer(scores + 0.05), expected(scores), 0)
    with pytest.raises(WrongWeightsError, match=r"where 0\.001 is allowed"):
        SyncProbe(trained, 200, is_copy=True).check(answer(scores + 0.05), expected(scores), 0)
    # It samples with a cache, and so with other rounding, which is that of a single position.
    for is_copy in (True, False):
        probe = SyncProbe(trained, 200, is_copy=is_copy)
        probe.check(Answer(scores, ((2, math.log(0.25) + 0.2),)), expected(scores), 0)
        with pytest.raises(WrongWeightsError, match="samples at temperature"):
            probe.check(Answer(scores, ((2, math.log(0.25) - 0.4),)), expected(scores), 0)


def test_changes_that_an_engine_s_rounding_may_swallow_are_no_evidence(sharp_model: Path) -> None:
    probe, scores = SyncProbe(load(sharp_model), 200), np.full(135, -2.0)
    for version in range(100):
        probe.check(answer(scores), expected(scores + 1e-6 * version), version)


def test_evidence_is_added_up_and_begins_anew_once_an_engine_is_right() -> None:
    evidence, zeros = Evidence(), np.zeros(4)
    now, before = np.array([0.1, 0.1, -0.1, 0.2]), zeros
    # x is 0.01, 0.01, 0.01 and 0.04 if the engine has the older weights: 0.07 / √0.0019.
    assert evidence.add(before, now, before) == pytest.approx(0.07 / math.sqrt(0.0019))
    assert evidence.add(before, now, before) == pytest.approx(0.14 / math.sqrt(0.0038))
    # Now x is −0.01, −0.01, −0.01 and −0.04.
    assert [evidence.add(now, now, before) for _ in range(3)] == [pytest.approx(0.07 / math.sqrt(0.0057)), 0.0, 0.0]
    assert evidence.add(before, now, before) == pytest.approx(0.07 / math.sqrt(0.0019))
    assert evidence.add(zeros, zeros, zeros) == pytest.approx(0.07 / math.sqrt(0.0019))
    assert Evidence().add(zeros, zeros, zeros) == 0.0


def test_rounding_alone_is_no_evidence_and_half_as_much_movement_as_rounding_soon_is() -> None:
    # The model and the engine each round anew in every version, with a deviation of 0.06 nats.
    draw = np.random.default_rng(0)

    def most(lag: int, moved: float) -> float:
        evidence, highest, path = Evidence(), 0.0, [np.zeros(135)]
        for _ in range(400):
            path.append(path[-1] + moved * draw.standard_normal(135))
        told = [each + 0.06 * draw.standard_normal(135) for each in path]
        for version in range(1, len(path)):
            answer = path[version - lag] + 0.06 * draw.standard_normal(135)
            highest = max(highest, evidence.add(answer, told[version], told[version - 1]))
        return highest

    assert all(most(lag=0, moved=moved) < 4 for moved in (0.0, 0.03, 0.3))
    assert most(lag=1, moved=0.0) < 4
    assert most(lag=1, moved=0.03) > 6


def test_a_model_with_little_room_is_probed_on_as_much_text_as_it_holds(sharp_model: Path) -> None:
    trained = load(sharp_model)
    probe = SyncProbe(trained, 20)
    assert len(probe.expected().logprobs) == 18
    probe.check(probe.ask(LoadedModelEngine(trained, frozenset({2}), 8)), probe.expected(), 0)
