"""Write the weights of a model in training to a folder that an engine can load, adapters merged.

The live model is only read. A folder in shared memory (`/dev/shm`) costs no disk and is the fastest to load.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError

from posttrain.errors import ModelError


def write_merged_weights(model: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write what `model` computes now into `folder`, as a model of its base's architecture without adapters.

    Each of PEFT's layers is copied, merged by PEFT's own arithmetic and dropped, so no merge ever has to be undone.
    A merged weight is rounded once: what an adapter adds to it below half a unit in its last place is lost.

    Args:
        model: a causal language model of transformers, with or without PEFT's adapters.
        folder: gets the config and the weights, over those of an earlier call.
        dtype: of the weights in the folder; the engine's own saves it a cast.

    Raises:
        ModelError: the base is quantised, an adapter cannot be folded into its weights, or the folder cannot be
            written.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    state = _merged_state(base)
    try:
        base.save_pretrained(folder, state_dict={name: _as(dtype, values) for name, values in state.items()})
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot write the merged weights to {folder}: {error}") from error


@torch.no_grad()
def _merged_state(base: Any) -> dict[str, torch.Tensor]:
    """The state dict of the bare model; what no adapter changes shares its memory with the live one."""
    layers = _adapted_layers(base)
    inside = tuple(f"{name}." for name in layers)
    state = {name: values for name, values in base.state_dict().items() if not name.startswith(inside)}
    for name, layer in layers.items():
        # At once to the CPU: a device that also trains has no room for all of them.
        merged = _merged(name, layer).state_dict(prefix=f"{name}.")
        state |= {key: values.cpu() for key, values in merged.items()}
    if base.config.get_text_config().tie_word_embeddings:
        _drop_tied_head(base, state)
    return state


def _adapted_layers(base: Any) -> dict[str, Any]:
    """PEFT's layers by the names of what they wrap; one inside another counts as part of it."""
    layers: dict[str, Any] = {}
    for name, module in base.named_modules():
        inside = name.startswith(tuple(f"{outer}." for outer in layers))
        if isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper) and not inside:
            layers[name] = module
    return layers


def _merged(name: str, layer: Any) -> torch.nn.Module:
    """A plain copy of `layer` that computes what `layer` computes."""
    if any(not values.is_floating_point() for values in layer.parameters()):
        raise ModelError(
            f"{name} is quantised, and no weights can be merged into it: load the model with quantization: none, or "
            "have the engine take the adapter alone"
        )
    layer = copy.deepcopy(layer)
    try:
        if isinstance(layer, AuxiliaryTrainingWrapper):
            return layer.unload_and_optionally_merge_module(merge=True, safe_merge=False, adapter_names=None)
        layer.merge()
        return layer.get_base_layer()
    except (NotImplementedError, RuntimeError, ValueError) as error:
        raise ModelError(f"PEFT cannot merge the adapter of {name}: {error}") from error


def _drop_tied_head(base: Any, state: dict[str, torch.Tensor]) -> None:
    """A head that is the embedding once more has no weights in a model's files."""
    names = {id(module): name for name, module in base.named_modules()}
    embedding, head = names[id(base.get_input_embeddings())], names[id(base.get_output_embeddings())]
    if not torch.equal(state.pop(f"{head}.weight"), state[f"{embedding}.weight"]):
        raise ModelError(
            f"the model uses {embedding} as its {head} too, but an adapter makes them differ: no model of this "
            "architecture computes that; train both or neither"
        )


def _as(dtype: torch.dtype, values: torch.Tensor) -> torch.Tensor:
    return values.to("cpu", dtype if values.is_floating_point() else None)
