"""Keep activations in the machine's memory between the forward and the backward pass, by torch's own hooks."""

from typing import Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks


def activations_on_cpu(model: torch.nn.Module) -> saved_tensors_hooks:
    """Context manager for a forward pass: what it saves for the backward pass is kept in pinned memory of the machine.

    Weights stay on the device: `save_on_cpu` alone would copy every one that a layer saves, at each pass.
    """
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    # Autocast saves weights in another dtype. An activation of the same shape stays on the device too.
    shapes = {shape for each in model.parameters() if each.ndim == 2 for shape in (each.shape, each.T.shape)}
    moved = save_on_cpu(pin_memory=True)

    def pack(tensor: torch.Tensor) -> Any:
        # A layer may save a view of its weight. It is detached because a hook must not return what it is given.
        is_weight = tensor.shape in shapes or tensor.untyped_storage().data_ptr() in weights
        return tensor.detach() if is_weight else moved.pack_hook(tensor)

    def unpack(packed: Any) -> torch.Tensor:
        return packed if isinstance(packed, torch.Tensor) else moved.unpack_hook(packed)

    return saved_tensors_hooks(pack, unpack)
