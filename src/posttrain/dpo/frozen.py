"""Hash of the weights that a reference stands on."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel

from posttrain.dpo.scores import AskedModel
from posttrain.models.checkpoint import TRAINED_ADAPTER

# What the configs of a model and of an adapter hold that does not change their numbers.
_NOT_NUMBERS = ("_name_or_path", "transformers_version", "use_cache", "architectures")
_NOT_NUMBERS_OF_ADAPTERS = ("base_model_name_or_path", "inference_mode", "revision", "peft_version", "auto_mapping")


@dataclass(frozen=True)
class Frozen:
    """What is asked for the reference's log-probabilities.

    Attributes:
        name: where the config names its weights.
        weights: hash of them.
    """

    asked: AskedModel
    name: str
    weights: str


def start_digest(model: Any, *, new_adapter: bool) -> str:
    """Hash of all that decides what `start_of_training` computes: the weights themselves, and the model's config.

    The weights of a new adapter are left out, so that its shape and seed do not matter.
    """
    digest = hashlib.blake2b(digest_size=16)
    described = {"model": _without(model.config.to_dict(), _NOT_NUMBERS)}
    if isinstance(model, PeftModel) and not new_adapter:
        described["adapter"] = _without(model.peft_config[TRAINED_ADAPTER].to_dict(), _NOT_NUMBERS_OF_ADAPTERS)
    digest.update(json.dumps(described, sort_keys=True, default=_in_order).encode())
    state = model.state_dict()
    if new_adapter:
        state = {
            _name_in_base(name): tensor for name, tensor in state.items() if TRAINED_ADAPTER not in name.split(".")
        }
    for name, tensor in sorted(state.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def _name_in_base(name: str) -> str:
    """The name of a weight before PEFT wrapped its layer."""
    for wrapper in (".base_layer", ".original_module", ".token_adapter"):
        name = name.replace(wrapper, "")
    return name


def _without(config: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def _in_order(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)
