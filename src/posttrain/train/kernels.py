"""Refuse kernels that this machine or backend does not have, before a model is loaded."""

from importlib.util import find_spec

import torch

from posttrain.config.sections.training import TrainingConfig
from posttrain.errors import ConfigError


def require_kernels(training: TrainingConfig, backend: str) -> None:
    """Refuse what this machine or backend has no kernels for, before a model is loaded; `backend` is hf or unsloth.

    Raises:
        ConfigError: 8-bit AdamW or Liger without a CUDA device, Liger or `compile` with unsloth, or Liger is not
            installed.
    """
    wanted = {"optimizer: adamw_8bit": training.optimizer == "adamw_8bit", "liger_kernel": training.liger_kernel}
    for key, is_wanted in wanted.items():
        if is_wanted and not torch.cuda.is_available():
            instead = "adamw" if key.startswith("optimizer") else "false"
            raise ConfigError(f"training.{key} needs a CUDA device; set it to {instead}")
    if training.liger_kernel and backend == "unsloth":
        raise ConfigError("training.liger_kernel: unsloth has kernels of its own; set it to false, or backend: hf")
    if training.compile is True and backend == "unsloth":
        raise ConfigError("training.compile: unsloth compiles what it wants to; set it to auto, or backend: hf")
    if training.liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigError("training.liger_kernel: not installed here: pip install liger-kernel, or set it to false")
