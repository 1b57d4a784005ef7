"""What `toolkit-predict` reads of a training config: it takes that of any trainer."""

from pydantic import ConfigDict

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.generation import GenerationConfig
from toolkit.core.config.model import ModelConfig
from toolkit.core.config.run import RunConfig
from toolkit.core.config.strict import StrictModel


class PredictConfig(StrictModel):
    """The sections that generation needs; the others belong to the trainer, which checks them itself."""

    model_config = ConfigDict(extra="ignore")

    model: ModelConfig
    """The base model."""

    chat: ChatConfig = ChatConfig()
    """Template and length limit."""

    run: RunConfig = RunConfig()
    """Where the run is kept."""

    generation: GenerationConfig = GenerationConfig()
    """How answers are sampled."""
