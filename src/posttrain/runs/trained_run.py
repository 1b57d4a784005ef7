"""Find a trained run by its config."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from posttrain.config.load import load_config
from posttrain.config.sections.chat import ChatConfig
from posttrain.config.sections.model import LoraConfig, ModelConfig, run_of_model
from posttrain.config.strict import ConfigPath
from posttrain.errors import ConfigError
from posttrain.runs.directory import RunDirectory


class _Part(BaseModel):
    """A section of which only some keys are of interest; all others are ignored."""

    # Validating defaults resolves their paths against the folder of the loaded file, as in `StrictModel`.
    model_config = ConfigDict(frozen=True, extra="ignore", validate_default=True, revalidate_instances="always")


class _RunSection(_Part):
    output_dir: ConfigPath = Path("runs")
    name: str | None = None


class _Location(_Part):
    """The part of any training config that says where its runs are."""

    run: _RunSection = _RunSection()
    models: tuple[ModelConfig, ...] = ()


class _Content(_Part):
    """The part of any training config that says what a model was made of."""

    model: ModelConfig
    lora: LoraConfig | None = LoraConfig()
    chat: ChatConfig = ChatConfig()


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder, and the sections of its resolved config that users of the model need."""

    directory: RunDirectory
    model: ModelConfig
    lora: LoraConfig | None
    chat: ChatConfig


def load_trained_run(
    config_path: Path, run_name: str | None = None, overrides: Sequence[str] = (), model_index: int | None = None
) -> TrainedRun:
    """The run of a training config, or the run whose own `config.yaml` is given.

    `model_index` selects the model if the config has several.

    The config file only says where the run is. What the run was made of is read from the copy in its folder, since the
    file may have been edited.

    Raises:
        ConfigError: a config cannot be read, or nothing was trained with it yet.
    """
    directory = _run_directory(Path(config_path), run_name, overrides, model_index)
    if not directory.config.is_file():
        raise ConfigError(
            f"there is no run in {directory.path}; train with {config_path} first, or name the run with --run-name"
        )
    content = load_config(directory.config, _Content)
    return TrainedRun(directory, content.model, content.lora, content.chat)


def _run_directory(
    config_path: Path, run_name: str | None, overrides: Sequence[str], model_index: int | None
) -> RunDirectory:
    own = RunDirectory(config_path.absolute().parent)
    if config_path.absolute() == own.config and own.manifest.is_file():
        return own
    located = load_config(config_path, _Location, overrides)
    name = run_name if run_name is not None else located.run.name or config_path.stem
    return RunDirectory(located.run.output_dir / run_of_model(name, located.models, model_index))
