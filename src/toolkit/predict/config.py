"""What `toolkit-predict` reads of a training config: it takes that of any trainer."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ConfigDict

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.data import OnBadRecord
from toolkit.core.config.generation import GenerationConfig
from toolkit.core.config.keys import dotted, read_dotted
from toolkit.core.config.load import load_config
from toolkit.core.config.model import ModelConfig
from toolkit.core.config.run import RunConfig
from toolkit.core.config.strict import StrictModel
from toolkit.errors import ConfigError


class PredictConfig(StrictModel):
    """The sections that generation needs; the others belong to the trainer, which checks them itself."""

    model_config = ConfigDict(extra="ignore")

    model: ModelConfig
    """The base model."""

    chat: ChatConfig = ChatConfig()
    """Template and length limit."""

    on_bad_record: OnBadRecord = "error"
    """Whether an input row that cannot be answered stops the command, or is left out and reported."""

    run: RunConfig = RunConfig()
    """Where the run is kept."""

    generation: GenerationConfig = GenerationConfig()
    """How answers are sampled."""


def load_predict_config(path: Path, overrides: Sequence[str] = ()) -> PredictConfig:
    """Load a training config; ConfigError also for a `--set` that generation would not read."""
    for override in overrides:
        head = read_dotted(override)
        if head is not None and head[0][0] not in PredictConfig.model_fields:
            known = ", ".join(PredictConfig.model_fields)
            raise ConfigError(f"--set {dotted(head[0])}: toolkit-predict reads only {known}")
    return load_config(path, PredictConfig, overrides)
