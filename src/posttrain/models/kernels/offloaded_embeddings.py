"""The input embedding in the machine's memory, while the other layers are on a CUDA device."""

from typing import Any

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

from posttrain.errors import ModelError


def keep_embeddings_on_cpu(model: Any) -> None:
    """Look tokens up on the CPU from now on; what is found goes to the device of the ids.

    Raises:
        ModelError: the embedding is also the head, or is trained.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    weights = list(embedding.parameters())
    if any(weight is other for weight in weights for other in head.parameters()):
        raise ModelError(
            "training.offload_embeddings: the embedding of this model is also its head, which is needed on the device; "
            "set it to false"
        )
    if any(weight.requires_grad for weight in weights):
        raise ModelError("training.offload_embeddings: the embedding is trained; set it to false")
    add_hook_to_module(embedding, AlignDevicesHook(execution_device="cpu", io_same_device=True))


def device_of(model: Any) -> torch.device:
    """The device of a model's layers."""
    return model.get_output_embeddings().weight.device
