"""A config of toolkit-predict whose model is behind servers, in the place of a training config."""

from collections.abc import Mapping
from pathlib import Path

from posttrain.config.load import read_raw
from posttrain.config.sections.answerers import EndpointConfig
from posttrain.config.sections.datasets import OnBadRecord
from posttrain.config.sections.generation import GenerationConfig
from posttrain.config.strict import StrictModel
from posttrain.errors import ConfigError


class ServedConfig(StrictModel):
    """Ask a model behind servers."""

    model: EndpointConfig
    """The servers, and the model's name there."""

    on_bad_record: OnBadRecord = "error"
    """Whether an input row that cannot be answered stops the command, or is skipped and reported."""

    generation: GenerationConfig = GenerationConfig()
    """How answers are sampled."""


def is_served(path: Path) -> bool:
    """Whether a config's model is behind servers: `model` has a `url`."""
    model = read_raw(path).get("model")
    return isinstance(model, Mapping) and "url" in model


def require_no_weights(options: Mapping[str, object]) -> None:
    """Refuse options of the command line that choose weights on this machine; ConfigError."""
    if named := [name for name, value in options.items() if value is not None]:
        option = named[0].replace("_", "-")
        raise ConfigError(f"--{option} chooses weights on this machine, but the config's model is behind a server")
