"""Choose the weights to answer with: the base, a trained adapter, a checkpoint, or a merged model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.config.sections.answerers import TrainedModelConfig, Weights
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ConfigError
from posttrain.inference.config import InferenceConfig, load_inference_config, section_of
from posttrain.models.adapters.fit import require_adapter_fits
from posttrain.models.location import locate_model, weights_digest
from posttrain.runs.checkpoints import find_checkpoint
from posttrain.runs.trained_run import load_trained_run

_WEIGHT_FILES = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class ChosenWeights:
    """The model to load, the adapter on top of it if there is one, and the chat config."""

    model: ModelConfig
    adapter: Path | None
    chat: ChatConfig

    def __str__(self) -> str:
        return self.model.name if self.adapter is None else f"{self.model.name} with the adapter in {self.adapter}"

    def digest(self) -> str | None:
        """Hash of the content of all weights, as `weights_digest`; None for a hub's model that is not here yet."""
        return weights_digest(
            self.model if self.adapter is None else self.model.model_copy(update={"adapter": self.adapter})
        )

    def digest_here(self) -> str:
        """As `digest`; ConfigError for a hub's model that is not here yet."""
        if (digest := self.digest()) is None:
            raise ConfigError(
                f"{self.model.name} is not on this machine yet, so it cannot be told whether all shards have the same "
                "weights; download it first, e.g. with hf download"
            )
        return digest

    def fingerprint(self) -> dict[str, Any]:
        """Size and modification time of each local weight file: cheap, and changed by every training or merge."""
        location = locate_model(self.model.name)
        places = [] if location.kind == "hub" else [Path(location.path)]
        places += [] if self.adapter is None else [self.adapter]
        files = [file for place in places for file in (sorted(place.iterdir()) if place.is_dir() else [place])]
        stats = {str(file): file.stat() for file in files if file.suffix in _WEIGHT_FILES}
        return {name: f"{stat.st_size} bytes of {stat.st_mtime_ns}" for name, stat in stats.items()}


def choose_weights(
    config_path: Path,
    weights: Weights = "auto",
    *,
    checkpoint: str | None = None,
    run_name: str | None = None,
    model_index: int | None = None,
    overrides: Sequence[str] = (),
) -> ChosenWeights:
    """Find the weights that `config_path` and the options name; nothing is loaded.

    For a trained model, `model` and `chat` come from the copy of the config in the run's folder, because the file may
    have been edited since; `overrides` are applied on top.

    Raises:
        ConfigError: the run, its merged model or the checkpoint does not exist.
        ModelError: a folder does not hold a model.
    """
    if weights == "base":
        if checkpoint is not None:
            raise ConfigError(
                "--weights base is the model before training, which has no checkpoints; drop --weights or --checkpoint"
            )
        return _base(load_inference_config(config_path, overrides).of_model(model_index))
    run = load_trained_run(config_path, run_name, overrides, model_index).directory
    folder = run.path if checkpoint is None else find_checkpoint(run, checkpoint).path
    merged = run.path / ("merged" if checkpoint is None else f"merged-{folder.name}")
    trained = load_inference_config(run.config, [text for text in overrides if section_of(text) in ("model", "chat")])
    if weights == "merged" or (weights == "auto" and _is_newer(merged / "config.json", folder)):
        if not (merged / "config.json").is_file():
            raise ConfigError(f"there is no merged model in {merged}; create it with toolkit-merge")
        return _whole(trained, merged)
    if (folder / "adapter_config.json").is_file():
        locate_model(trained.model.name)
        return ChosenWeights(trained.model, folder, trained.chat)
    if (folder / "config.json").is_file():  # all weights were trained: the folder is the model
        return _whole(trained, folder)
    raise ConfigError(
        f"there is no trained model in {folder} yet; finish training (--resume), or choose a checkpoint with "
        "--checkpoint"
    )


def weights_of(choice: TrainedModelConfig) -> ChosenWeights:
    """The weights that a config section names; errors as `choose_weights`."""
    which = {"checkpoint": choice.checkpoint, "run_name": choice.run_name, "model_index": choice.model_index}
    return choose_weights(choice.config, choice.weights, **which)


def _base(config: InferenceConfig) -> ChosenWeights:
    locate_model(config.model.name)
    adapter = config.model.adapter
    if adapter is not None:
        require_adapter_fits(adapter, config.model)
    return ChosenWeights(config.model, adapter, config.chat)


def _whole(config: InferenceConfig, folder: Path) -> ChosenWeights:
    model = config.model.model_copy(update={"name": str(folder), "revision": None, "adapter": None, "added_tokens": ()})
    return ChosenWeights(model, None, config.chat)


def _is_newer(merged: Path, folder: Path) -> bool:
    """Whether the merged model is newer than the adapter in `folder`, which a resumed run may have replaced."""
    adapter = folder / "adapter_config.json"
    return merged.is_file() and not (adapter.is_file() and adapter.stat().st_mtime > merged.stat().st_mtime)
