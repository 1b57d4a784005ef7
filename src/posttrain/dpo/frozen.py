"""The model as it is when training starts, kept so that it can be asked later, and a hash of it."""

import copy
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel

from posttrain.dpo.scores import AskedModel
from posttrain.errors import ModelError

# PEFT's name for the adapter that is trained, and ours for its frozen copy.
TRAINED = "default"
COPY = "reference"

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


def without_dropout(model: Any) -> None:
    """Turn dropout off for good, in the model and in its adapter: by it a model would differ from itself.

    So does TRL unless told otherwise. Its helper knows layers of dropout only; most of transformers' models apply that
    of attention in a function, by a number that is kept beside the layers.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
                setattr(module, name, 0.0)


def start_of_training(model: Any, *, new_adapter: bool, asked_later: bool) -> AskedModel:
    """`model` as it is now, before it is trained.

    Call it before anything else is attached to the model.

    Args:
        new_adapter: the model has an adapter that has learnt nothing yet, so that the base is what it computes.
        asked_later: whether it must stay as it is while `model` is trained. That costs memory where there is no base
            to go back to: a copy of the adapter, or of all weights.
    """
    if isinstance(model, PeftModel) and new_adapter:
        return AskedModel(model, switched=model.disable_adapter)
    if not asked_later:
        return AskedModel(model)
    if isinstance(model, PeftModel):
        _copy_adapter(model)
        return AskedModel(model, switched=lambda: _with_copy(model))
    return AskedModel(copy.deepcopy(model).requires_grad_(False))


def start_digest(model: Any, *, new_adapter: bool) -> str:
    """Hash of all that decides what `start_of_training` computes: the weights themselves, and the model's config.

    The weights of a new adapter are left out, so that its shape and seed do not matter.
    """
    digest = hashlib.blake2b(digest_size=16)
    described = {"model": _without(model.config.to_dict(), _NOT_NUMBERS)}
    if isinstance(model, PeftModel) and not new_adapter:
        described["adapter"] = _without(model.peft_config[TRAINED].to_dict(), _NOT_NUMBERS_OF_ADAPTERS)
    digest.update(json.dumps(described, sort_keys=True, default=_in_order).encode())
    state = model.state_dict()
    if new_adapter:
        state = {_name_in_base(name): tensor for name, tensor in state.items() if TRAINED not in name.split(".")}
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


def _copy_adapter(model: PeftModel) -> None:
    """Add a frozen copy of the trained adapter."""
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.add_adapter(COPY, model.peft_config[TRAINED])
    state = model.state_dict()
    for name in state:
        if TRAINED in (parts := name.split(".")):
            twin = ".".join(COPY if part == TRAINED else part for part in parts)
            if twin not in state:
                raise ModelError(
                    f"reference: PEFT keeps no copy of {name}; set reference.type to cached, which needs none"
                )
            state[twin].copy_(state[name])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)


@contextmanager
def _with_copy(model: PeftModel) -> Iterator[None]:
    model.set_adapter(COPY, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(TRAINED)
