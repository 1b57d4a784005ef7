"""Which weights `toolkit-rl-debug` samples from: those that training made, or those that it starts with."""

from dataclasses import dataclass
from pathlib import Path

from posttrain.config.sections.model import ModelConfig
from posttrain.errors import ModelError
from posttrain.models.location import locate_model
from posttrain.rl.config.rl import RLConfig
from posttrain.runs.checkpoints import latest_checkpoint
from posttrain.runs.directory import RunDirectory


@dataclass(frozen=True)
class DebugWeights:
    """The model to load, and the adapter on top of it if there is one."""

    model: ModelConfig
    adapter: Path | None

    def __str__(self) -> str:
        return self.model.name if self.adapter is None else f"{self.model.name} with the adapter in {self.adapter}"


def choose_weights(config: RLConfig, name: str, wanted: str = "auto") -> DebugWeights:
    """The weights that `wanted` names; nothing is loaded.

    Args:
        name: the run's.
        wanted: `auto`: the finished run's, else those of its newest checkpoint, else where training starts; `start`:
            the last of these; anything else is the folder of an adapter, a checkpoint or a model.

    Raises:
        ModelError: there is no such folder, or no model in it.
    """
    if wanted not in ("auto", "start"):
        return _of_folder(config.model, Path(wanted).expanduser().absolute(), "--weights")
    folder = _trained(RunDirectory(config.run.output_dir / name)) if wanted == "auto" else None
    if folder is not None:
        return _of_folder(config.model, folder, "the run")
    locate_model(config.model.name)
    if config.model.adapter is not None:
        return _of_folder(config.model, config.model.adapter, "model.adapter")
    return DebugWeights(config.model, None)


def _trained(run: RunDirectory) -> Path | None:
    """Where the run's weights are; what a resumed run has at its root is of before."""
    if run.result.is_file():
        return run.path
    latest = latest_checkpoint(run)
    return latest.path if latest is not None else None


def _of_folder(model: ModelConfig, folder: Path, told_by: str) -> DebugWeights:
    if (folder / "adapter_config.json").is_file():
        locate_model(model.name)
        return DebugWeights(model, folder)
    if (folder / "config.json").is_file():  # all weights were trained: the folder is the model
        whole = {"name": str(folder), "revision": None, "adapter": None, "added_tokens": ()}
        return DebugWeights(model.model_copy(update=whole), None)
    raise ModelError(
        f"{told_by}: {folder} has neither an adapter_config.json nor a config.json, so there is no model in it; "
        "name the folder of an adapter or of a checkpoint, or give --weights start"
    )
