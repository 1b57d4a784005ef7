"""A model frozen as it was when training started."""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel

from posttrain.errors import ModelError
from posttrain.models.weights.checkpoint import TRAINED_ADAPTER

FROZEN_ADAPTER = "reference"
"""PEFT's name of the frozen copy of the trained adapter."""


@dataclass(frozen=True)
class FrozenModel:
    """A model to run without gradients and without dropout.

    Attributes:
        model: the model to call, within `asked`.
        switched: context manager in which `model` computes the frozen outputs, e.g. without its adapter.
    """

    model: Any
    switched: Callable[[], AbstractContextManager[Any]] = nullcontext

    @contextmanager
    def asked(self) -> Iterator[Any]:
        """The model, to be called within the block."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self.switched():
                yield self.model
        finally:
            self.model.train(was_training)


def start_of_training(model: Any, *, new_adapter: bool, asked_later: bool) -> FrozenModel:
    """`model` as it is now, before it is trained.

    Call it before anything else is attached to the model.

    Args:
        new_adapter: whether the adapter is new and has learnt nothing yet, so that the model computes what its base
            does.
        asked_later: whether the frozen model is still needed while `model` is trained. Without a base to go back to,
            that costs memory: a copy of the adapter, or of all weights.

    Raises:
        ModelError: PEFT keeps no copy of one of the adapter's weights.
    """
    if isinstance(model, PeftModel) and new_adapter:
        return FrozenModel(model, switched=model.disable_adapter)
    if not asked_later:
        return FrozenModel(model)
    if isinstance(model, PeftModel):
        _copy_adapter(model)
        return FrozenModel(model, switched=lambda: _with_copy(model))
    return FrozenModel(copy.deepcopy(model).requires_grad_(False))


def without_dropout(model: Any) -> None:
    """Turn dropout off for good in the model and its adapter: with it, two passes of one model would differ.

    Most transformers models apply attention dropout in a function, at a rate stored as an attribute of the module.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
                setattr(module, name, 0.0)


def _copy_adapter(model: PeftModel) -> None:
    """Add a frozen copy of the trained adapter."""
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.add_adapter(FROZEN_ADAPTER, model.peft_config[TRAINED_ADAPTER])
    state = model.state_dict()
    for name in state:
        if TRAINED_ADAPTER in (parts := name.split(".")):
            twin = ".".join(FROZEN_ADAPTER if part == TRAINED_ADAPTER else part for part in parts)
            if twin not in state:
                raise ModelError(
                    f"PEFT keeps no frozen copy of {name}, so the model at the start of training is not available "
                    "later; for preferences set reference.type: cached, for reinforcement learning objective.beta: 0"
                )
            state[twin].copy_(state[name])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)


@contextmanager
def _with_copy(model: PeftModel) -> Iterator[None]:
    model.set_adapter(FROZEN_ADAPTER, inference_mode=True)
    try:
        yield
    finally:
        model.set_adapter(TRAINED_ADAPTER)
