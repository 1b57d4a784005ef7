"""What a backend must know of a config to load a model for training."""

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.training import TrainingConfig
from toolkit.core.models.base import TrainingSettings


def training_settings(chat: ChatConfig, training: TrainingConfig, max_length: int) -> TrainingSettings:
    """The settings of a run whose longest row is of `max_length` tokens."""
    return TrainingSettings(
        chatml=chat.template == "chatml",
        max_length=max_length,
        gradient_checkpointing=training.gradient_checkpointing,
        seed=training.seed,
        liger_kernel=training.liger_kernel,
    )
