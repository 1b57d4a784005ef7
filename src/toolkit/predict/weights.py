"""Which weights answer: the base as it was, the adapter of a run, or its merged model."""

from pathlib import Path
from typing import Literal

from toolkit.core.config.model import ModelConfig
from toolkit.core.runs.checkpoints import find_checkpoint
from toolkit.core.runs.trained import TrainedRun, load_trained_run
from toolkit.errors import ConfigError
from toolkit.predict.config import PredictConfig

Weights = Literal["auto", "merged", "adapter", "base"]


def choose_weights(
    config: PredictConfig, config_path: Path, run_name: str | None, weights: Weights, checkpoint: str | None
) -> tuple[ModelConfig, Path | None]:
    """The model to load, and the adapter on top of it if there is one.

    Raises:
        ConfigError: the run, its merged model or the checkpoint is not there.
    """
    if checkpoint is not None and weights not in ("auto", "adapter"):
        raise ConfigError(f"--checkpoint names an adapter, which --weights {weights} does not use; leave one out")
    if weights == "base":
        return config.model, config.model.adapter
    run = load_trained_run(config_path, run_name)
    merged = run.directory.path / "merged"
    if checkpoint is not None:
        return _trained(run, find_checkpoint(run.directory, checkpoint).path)
    if weights == "merged" or (weights == "auto" and merged.is_dir()):
        return _merged(run, merged)
    return _trained(run, run.directory.path)


def _trained(run: TrainedRun, folder: Path) -> tuple[ModelConfig, Path | None]:
    if (folder / "adapter_config.json").is_file():
        return run.model, folder
    if (folder / "config.json").is_file():  # all weights were trained: the folder is the model
        return _whole(run, folder), None
    raise ConfigError(f"there is no trained model in {folder} yet; go on with it by toolkit-sft --resume")


def _merged(run: TrainedRun, merged: Path) -> tuple[ModelConfig, Path | None]:
    if not (merged / "config.json").is_file():
        raise ConfigError(f"there is no merged model in {merged}; make it by toolkit-merge")
    return _whole(run, merged), None


def _whole(run: TrainedRun, folder: Path) -> ModelConfig:
    return run.model.model_copy(update={"name": str(folder), "revision": None, "adapter": None, "added_tokens": ()})
