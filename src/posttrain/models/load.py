"""Choose and import the model backend."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from posttrain.base.extras import require_extra
from posttrain.models.backend import tell_of_unused_accelerator

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig
    from posttrain.models.backend import Backend


def choose_backend(config: "ModelConfig") -> "Backend":
    """The backend that `config.backend` names; `auto` is unsloth if it is installed and a CUDA device is present.

    Call this before anything imports transformers or PEFT: importing unsloth rewrites their classes.

    Raises:
        ConfigError: the backend's packages, or those for `config.quantization`, are not installed.
    """
    # Progress bars and advice from the libraries would break up our own display.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Only services that the config names may learn of a run.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Nor is the hub's conversion service asked to convert a model that has only pickled weights.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    tell_of_unused_accelerator()
    if config.quantization != "none":
        require_extra("bitsandbytes", f"{config.key}.quantization: {config.quantization}")
    if _wanted(config) == "unsloth":
        require_extra("unsloth", "model.backend: unsloth")
        from posttrain.models.unsloth import UnslothBackend

        return UnslothBackend()
    from posttrain.models.hf import HfBackend

    return HfBackend()


def _wanted(config: "ModelConfig") -> str:
    if config.backend != "auto":
        return config.backend
    if find_spec("unsloth") is None:
        return "hf"
    import torch

    return "unsloth" if torch.cuda.is_available() else "hf"
