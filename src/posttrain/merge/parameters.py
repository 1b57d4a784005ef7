"""What an adapter on parameters, such as those of experts, adds to the tensors of the base's files.

transformers has the experts of a layer in one parameter, and many files have a tensor for each expert, or other names.
The change of a parameter is computed as a whole and taken apart as transformers does for saving: cutting and renaming
do the same to a sum as to its parts.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from peft.tuners.lora import ParamWrapper
from torch import nn
from transformers.core_model_loading import revert_weight_conversion

from posttrain.errors import ModelError
from posttrain.merge.adapter import Adapter, Outline, Site
from posttrain.models.weights.checkpoint import TRAINED_ADAPTER
from posttrain.models.weights.tensor_files import StoredTensor

Parts = dict[str, torch.Tensor]
"""Changes of the tensors in files, by their names."""
# The tensors of a layer's experts follow each other in files, so that the two parameters are computed once.
_KEPT = 2


class ParameterChanges:
    """The changes that an adapter makes to parameters, in float32."""

    def __init__(self, outline: Outline, adapter: Adapter) -> None:
        self._outline, self._adapter = outline, adapter
        self._parts = lru_cache(maxsize=_KEPT)(self._computed)

    def by_name(self, stored: dict[str, StoredTensor]) -> dict[str, Callable[[], torch.Tensor]]:
        """For each tensor of the base's files that the adapter changes through a parameter, what gives its change.

        Raises:
            ModelError: the files hold such a parameter neither as a whole nor in the parts that transformers saves.
        """
        found: dict[str, Callable[[], torch.Tensor]] = {}
        for parameter, site in self._outline.parameters.items():
            shape = torch.empty(self._outline.shapes[parameter], device="meta")
            parts = revert_weight_conversion(self._outline.model, {parameter: shape})
            if all(name in stored for name in parts):
                found |= {name: partial(self._part, parameter, name) for name in parts}
            elif parameter in stored:
                found[parameter] = partial(self._whole, parameter)
            else:
                names = ", ".join(site.tensors.values())
                raise ModelError(f"the adapter's {names} would not be used: the base model's files lack {parameter}")
        return found

    def _part(self, parameter: str, name: str) -> torch.Tensor:
        return self._parts(parameter)[name]

    def _computed(self, parameter: str) -> Parts:
        return revert_weight_conversion(self._outline.model, {parameter: self._whole(parameter)})

    def _whole(self, parameter: str) -> torch.Tensor:
        site = self._outline.parameters[parameter]
        return _change(
            site, {inner: self._adapter.tensors[name].read_float32() for inner, name in site.tensors.items()}
        )


@torch.no_grad()
def _change(site: Site, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """What PEFT's wrapper of a parameter adds to it, float32; `tensors` are the adapter's, by their names within it."""
    wrapper: Any = site.module
    assert isinstance(wrapper, ParamWrapper)
    wrapper.load_state_dict(tensors, strict=False, assign=True)
    # The change is given the device and dtype of the parameter, whose values it does not depend on.
    setattr(wrapper.get_base_layer(), wrapper.parameter_name, nn.Parameter(torch.empty(0)))
    try:
        return wrapper.get_delta_weight(TRAINED_ADAPTER)
    finally:
        wrapper.to("meta")
