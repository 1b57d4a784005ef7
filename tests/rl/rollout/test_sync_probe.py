"""The probe finds an engine with stale weights, a stale cache or other log-probabilities before anything is trained."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.inference.engine import Completion, FinishedCompletions, GenerationRequest, Key, Sampling
from posttrain.inference.loaded import LoadedModelEngine
from posttrain.models.backend import LoadedModel, TrainingSettings
from posttrain.models.hf import HfBackend
from posttrain.rl.rollout.engines.probe import SyncProbe, WrongWeightsError
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
    rounded = replace(trained, compute_dtype=torch.bfloat16)
    engine = LoadedModelEngine(load(sharp_model), frozenset({2}), 8)
    probe = SyncProbe(rounded, 200)
    with pytest.raises(WrongWeightsError, match="computes exactly what it did"):
        for version in range(1000):
            probe.check(probe.ask(engine), probe.expected(), version)
            change(trained, 0.0005)


def test_a_model_with_little_room_is_probed_on_as_much_text_as_it_holds(sharp_model: Path) -> None:
    trained = load(sharp_model)
    probe = SyncProbe(trained, 20)
    assert len(probe.expected().logprobs) == 18
    probe.check(probe.ask(LoadedModelEngine(trained, frozenset({2}), 8)), probe.expected(), 0)
