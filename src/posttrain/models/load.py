"""Choose and import the backend."""

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING

from posttrain.base.extras import require_extra

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig
    from posttrain.models.backend import Backend


def choose_backend(config: "ModelConfig") -> "Backend":
    """The backend that `config.backend` names; `auto` is unsloth where an accelerator and unsloth are both there.

    Call this before anything imports transformers or PEFT: unsloth rewrites their classes when it is imported.

    Raises:
        ConfigError: the backend's packages are not installed.
    """
    # Progress bars and advice of the libraries below would break up our own display.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # Nobody is told of a run but those whom its config names.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    # Nor is a service on the hub asked to convert a model that has pickled weights alone.
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
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

    return "unsloth" if torch.accelerator.is_available() else "hf"
