"""vLLM's sleep mode in a run: when the engine sleeps and wakes up, and which configs are rejected."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from posttrain.errors import ConfigError
from posttrain.inference.engine import Sampling
from posttrain.inference.vllm import VllmEngine
from posttrain.inference.vllm_load import VllmOptions
from posttrain.models.backend import LoadedModel
from posttrain.rl.config import RLConfig, RolloutConfig
from posttrain.rl.rollout.engines.open import open_rollout_engine


def test_the_training_model_itself_cannot_sleep() -> None:
    with pytest.raises(ValidationError, match="sleep: true needs engine: vllm, but this is hf; leave it out"):
        RolloutConfig(sleep=True)
    assert RolloutConfig(sleep=True, engine="vllm").sleep


def test_without_a_cuda_device_it_is_refused_before_vllm_is_started(tmp_path: Path) -> None:
    sections = {"model": {"name": "owner/model"}, "dataserver": {"url": "http://127.0.0.1:9000"}}
    config = RLConfig.model_validate({**sections, "rollout": {"engine": "vllm", "sleep": True}})
    model: Any = SimpleNamespace()
    loaded = LoadedModel(model, model, torch.device("cpu"), torch.float32, ())
    with pytest.raises(ConfigError, match=r"rollout\.sleep: vLLM can release its memory only on CUDA devices"):
        open_rollout_engine(config, loaded, frozenset({2}), tmp_path)


@pytest.mark.vllm
def test_an_engine_that_was_not_made_to_sleep_says_so_and_is_always_awake(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from vllm_model import write_vllm_model

    folder = write_vllm_model(tiny_model, tmp_path_factory.mktemp("sleep")).with_name("plain")
    engine = VllmEngine(folder, frozenset({2}), VllmOptions("float32", 64, eager=True))
    try:
        engine.wake_up()
        with pytest.raises(RuntimeError, match="this engine was created without sleep mode"):
            engine.sleep()
    finally:
        engine.close()


class Recorded:
    """Stands for vLLM's own engine, because a CPU cannot sleep: records the calls in order."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls
        self._sleeps = False

    def is_sleeping(self) -> bool:
        return self._sleeps

    def has_unfinished_requests(self) -> bool:
        return False

    def sleep(self, level: int) -> None:
        self._sleeps = True
        self._calls.append("sleep")

    def wake_up(self) -> None:
        self._sleeps = False
        self._calls.append("wake_up")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of vLLM and of the engine around it."""
    asked: list[str] = []
    monkeypatch.setattr("posttrain.inference.vllm.start_vllm", lambda *_: Recorded(asked))
    monkeypatch.setattr("posttrain.inference.vllm._on_cpu", lambda: True)
    monkeypatch.setattr(VllmEngine, "load_weights", lambda *_: asked.append("load"))
    monkeypatch.setattr(VllmEngine, "generate", lambda *_, **__: asked.append("generate") or {})
    return asked


def test_it_is_awake_whenever_weights_come_or_completions_are_wanted_and_asleep_else(calls: list[str]) -> None:
    engine = VllmEngine(Path("model"), frozenset({2}), VllmOptions("bfloat16", 64, sleeps=True))
    assert calls == ["sleep"]
    for step in (0, 1):
        calls.clear()
        engine.load(Path("weights"), step)
        assert calls == ["wake_up", "load"]
        calls.clear()
        engine.complete([], Sampling(max_new_tokens=1))
        assert calls == ["generate", "sleep"]
        calls.clear()
        engine.complete([], Sampling(max_new_tokens=1))
        assert calls == ["wake_up", "generate", "sleep"]


def test_an_engine_that_keeps_its_memory_never_sleeps(calls: list[str]) -> None:
    engine = VllmEngine(Path("model"), frozenset({2}), VllmOptions("bfloat16", 64))
    engine.load(Path("weights"), 0)
    engine.complete([], Sampling(max_new_tokens=1))
    assert calls == ["load", "generate"]
