"""A model whose weights, gradients and optimizer states are shared by all processes (FSDP2).

torch's `fully_shard` (https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html) cuts each parameter along
its first dimension: a process keeps its share, and the parameters of a decoder layer are gathered while the layer is
computed, forward and backward. What is outside of them is gathered for a whole pass.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from posttrain.base.processes import is_main_process
from posttrain.errors import ModelError
from posttrain.models.weights.outermost import outermost


def shard(model: nn.Module, device: torch.device) -> None:
    """Reduce the weights of `model` to this process's share of them, on `device`, in place.

    All processes call it together, each with the same whole weights. If these are mapped from a file, no more than one
    layer of them is in memory at a time.
    """
    mesh = init_device_mesh(device.type, (distributed.get_world_size(),))
    for layer in _layers(model):
        fully_shard(layer, mesh=mesh)
    # Also what is outside the layers: after an evaluation, which has no backward pass, it would stay gathered, and then
    # be stale.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)


def require_unscaled(dtype: torch.dtype) -> None:
    """Raise ModelError for float16, whose loss is scaled: a process would see an overflow in its own share alone."""
    if dtype is torch.float16:
        raise ModelError(
            "parallel.kind: fsdp2 does not go together with float16, which model.dtype comes to on this device; set it "
            "to float32, or use ddp"
        )


def _layers(model: nn.Module) -> list[nn.Module]:
    """What is gathered at a time: each decoder layer, and embedding and head if these are two plain matrices."""
    from transformers.modeling_layers import GradientCheckpointingLayer  # not before unsloth, which rewrites such

    layers: list[nn.Module] = [*outermost(model, GradientCheckpointingLayer).values()]
    names = ("get_input_embeddings", "get_output_embeddings")
    found = [getattr(model, name, lambda: None)() for name in names]
    ends = [each for each in found if isinstance(each, nn.Embedding | nn.Linear)]
    are_two = len({id(each.weight) for each in ends}) == len(ends)
    return layers + ends if are_two else layers


def plain_class(module: nn.Module) -> Any:
    """The class of a module, as it was before it was sharded."""
    return next(each for each in type(module).__mro__ if not issubclass(each, FSDPModule))


def is_sharded(model: nn.Module) -> bool:
    """Whether the model went through `shard`."""
    return isinstance(model, FSDPModule)


def takes_part(model: nn.Module) -> bool:
    """Whether this process is needed to write the model for all: each that has a share is, else the main one alone."""
    return is_main_process() or is_sharded(model)


def writes(model: nn.Module) -> bool:
    """Whether this process, which takes part, writes what is gathered; the others of a sharded model only send."""
    return is_main_process() or not is_sharded(model)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor of which each process has a share; any other tensor as it is. All processes call it together."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_tensors(tensors: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
    """The tensors as a whole, on the CPU, gathered one after another by all processes; empty where not `keep`.

    A tensor that has several names is gathered once.
    """
    gathered: dict[int, torch.Tensor | None] = {}
    for each in tensors.values():
        if id(each) not in gathered:
            found = whole(each.detach())
            gathered[id(each)] = found.cpu() if keep else None
    return {name: found for name, each in tensors.items() if (found := gathered[id(each)]) is not None}


@torch.no_grad()
def copy_whole(tensor: torch.Tensor, target: torch.Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    target.copy_(share(tensor, target))


def share(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A whole tensor, cut as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    # Every process has read the same tensor, so none is sent.
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
