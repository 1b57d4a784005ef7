"""A loaded model that clearly prefers some tokens, and prompts for it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from loaded_model import Loaded

from posttrain.config.sections.model import ModelConfig
from posttrain.inference.engine import GenerationRequest
from posttrain.models.hf import HfBackend
from sharp_model import write_sharp_model


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """For all tests here."""


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sharp_model(tiny_model, tmp_path_factory.mktemp("models") / "sharp")


@pytest.fixture
def load() -> Callable[..., Loaded]:
    def load_(model: Path, adapter: Path | None = None) -> Loaded:
        config = ModelConfig(name=str(model), backend="hf", dtype="float32")
        loaded = HfBackend().load_for_inference(config, adapter, chatml=True)
        return Loaded(loaded.model, loaded.tokenizer)

    return load_


@pytest.fixture
def sharp(sharp_model: Path, load: Callable[..., Loaded]) -> Loaded:
    return load(sharp_model)


@pytest.fixture
def uneven() -> list[GenerationRequest]:
    """Eight prompts of 4 to 32 tokens, each with its own seed."""
    return [GenerationRequest(tuple(range(5 + row, 9 + 5 * row)), (row,)) for row in range(8)]
