"""Write a model in training as a plain model, with its adapter merged in; the live model is only read."""

import copy
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError

from posttrain.errors import ModelError
from posttrain.models.weights.outermost import outermost
from posttrain.models.weights.sharding import whole, whole_tensors, writes


def write_merged_weights(model: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write `model` as it is now into `folder`, as a model of its base's architecture without adapters.

    The processes that share a sharded model call it together, and the main process writes.

    Each PEFT layer is copied, merged by PEFT's own arithmetic and discarded, so no merge ever has to be undone. A
    merged weight is rounded once: an adapter's change below half a unit in its last place is lost.

    Args:
        model: a causal language model of transformers, with or without PEFT's adapters.
        folder: receives the config and the weights, replacing those of an earlier call.
        dtype: of the weights in the folder; with the engine's own dtype the engine need not cast.

    Raises:
        ModelError: the base is quantised, an adapter cannot be merged into its weights, or the folder cannot be
            written.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    state = _merged_state(base, keep=writes(model))
    if not writes(model):
        return
    try:
        base.save_pretrained(folder, state_dict={name: _as(dtype, values) for name, values in state.items()})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write the merged weights to {folder}: {error}") from error


@torch.no_grad()
def _merged_state(base: Any, *, keep: bool) -> dict[str, torch.Tensor]:
    """The state dict of the bare model, empty if not `keep`; what no adapter changes may share memory with the live
    one.

    Moved to the CPU one by one: a device that also trains has no room for all merged weights.
    """
    layers = outermost(base, (BaseTunerLayer, AuxiliaryTrainingWrapper))
    inside = tuple(f"{name}." for name in layers)
    own = {name: each for name, each in base.state_dict(keep_vars=True).items() if not name.startswith(inside)}
    state = whole_tensors(own, keep=keep)
    for name, layer in layers.items():
        merged = _merged(name, layer).state_dict(prefix=f"{name}.")
        if keep:
            state |= {key: values.cpu() for key, values in merged.items()}
    if keep and base.config.get_text_config().tie_word_embeddings:
        _drop_tied_head(base, state)
    return state


def _merged(name: str, layer: Any) -> torch.nn.Module:
    """A plain copy of `layer`, without adapters, that computes the same."""
    if any(not values.is_floating_point() for values in layer.parameters()):
        raise ModelError(
            f"{name} is quantised, so the adapter cannot be merged into it: load the model with quantization: none, or "
            "let the engine apply the adapter itself"
        )
    is_parameter = isinstance(layer, ParamWrapper)
    copies = {id(each): whole(each).clone() for each in layer.parameters()}
    # PEFT rounds what it adds to a parameter to the parameter's dtype first.
    copies = {each: values.float() for each, values in copies.items()} if is_parameter else copies
    weights = {each: torch.nn.Parameter(values, requires_grad=False) for each, values in copies.items()}
    layer = copy.deepcopy(layer, weights)
    try:
        if is_parameter or isinstance(layer, AuxiliaryTrainingWrapper):
            return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        layer.merge()
        return layer.get_base_layer()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"PEFT cannot merge the adapter of {name}: {error}") from error


def _drop_tied_head(base: Any, state: dict[str, torch.Tensor]) -> None:
    """Drop a tied head's weights, which model files do not store; ModelError if they differ from the embedding."""
    names = {id(module): name for name, module in base.named_modules()}
    embedding, head = names[id(base.get_input_embeddings())], names[id(base.get_output_embeddings())]
    if not torch.equal(state.pop(f"{head}.weight"), state[f"{embedding}.weight"]):
        raise ModelError(
            f"{head} is tied to {embedding}, but an adapter makes them differ, which this architecture cannot "
            "represent; train both or neither"
        )


def _as(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", dtype if values.is_floating_point() else None)
