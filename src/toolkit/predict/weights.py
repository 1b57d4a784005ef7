"""Which weights answer: the base as it was, the adapter of a run, or its merged model."""

from pathlib import Path
from typing import Literal

from toolkit.core.config.model import ModelConfig
from toolkit.core.runs.trained import load_trained_run
from toolkit.errors import ConfigError
from toolkit.predict.config import PredictConfig

Weights = Literal["auto", "merged", "adapter", "base"]


def choose_weights(
    config: PredictConfig, config_path: Path, run_name: str | None, weights: str, checkpoint: str | None
) -> tuple[ModelConfig, Path | None]:
    """The model to load, and the adapter on top of it if there is one.

    Raises:
        ConfigError: the run, its merged model or the checkpoint is not there.
    """
    if weights not in ("auto", "merged", "adapter", "base"):
        raise ConfigError(f"--weights {weights}: give auto, merged, adapter or base")
    if weights == "base":
        return config.model, config.model.adapter
    run = load_trained_run(config_path, run_name)
    ...
