"""The tiny model loaded for training, and an adapter for it."""

import shutil

import pytest
import torch

from posttrain.config.sections.model import LoraConfig, ModelConfig
from posttrain.models.backend import TrainingSettings
from posttrain.models.hf import HfBackend

SMALL = LoraConfig(r=2)


@pytest.fixture(scope="session")
def train(tiny_model):
    """`train(lora, checkpointing=..., **model)` loads the tiny model for training, by default with an adapter."""

    def load(lora: LoraConfig | None = SMALL, *, seed: int = 0, checkpointing: bool = False, **model):
        config = ModelConfig(**{"name": str(tiny_model), "backend": "hf", "dtype": "float32", **model})
        settings = TrainingSettings(chatml=True, max_length=64, gradient_checkpointing=checkpointing, seed=seed)
        return HfBackend().load_for_training(config, lora, settings=settings)

    return load


@pytest.fixture
def copied(tiny_model, tmp_path):
    """A copy of the tiny model's folder for tests to damage."""
    return shutil.copytree(tiny_model, tmp_path / "copy")


@pytest.fixture(scope="session")
def adapter(train, tmp_path_factory):
    """The folder of an adapter with random weights for the tiny model."""
    folder = tmp_path_factory.mktemp("adapter")
    model = train(LoraConfig(r=2, target_modules=("q_proj", "up_proj"))).model
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_()
    model.save_pretrained(folder)
    return folder
