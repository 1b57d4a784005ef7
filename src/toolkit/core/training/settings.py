"""What a backend must know of a config to load a model for training."""

from toolkit.core.config.chat import ChatConfig
from toolkit.core.config.training import TrainingConfig
from toolkit.core.models.base import TrainingSettings


def training_settings(
    chat: ChatConfig, training: TrainingConfig, max_length: int, *, steps: int, was_compiled: bool | None
) -> TrainingSettings:
    """The settings of a run of `steps`, whose longest row is of `max_length` tokens.

    `was_compiled`: what `compile: auto` came to before, in a run that is resumed.
    """
    return TrainingSettings(
        chatml=chat.template == "chatml",
        max_length=max_length,
        gradient_checkpointing=training.gradient_checkpointing,
        seed=training.seed,
        liger_kernel=training.liger_kernel,
        compile=was_compiled if training.compile == "auto" else training.compile,
        rows=steps * training.rows_per_step,
        rows_at_once=training.micro_batch_size,
    )
