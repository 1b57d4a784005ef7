"""The trained weights in a checkpoint: an adapter, or a whole model."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from posttrain.errors import ModelError
from posttrain.models.backend import LoadedModel
from posttrain.models.weights.sharding import copy_whole, is_sharded, plain_class, whole, whole_tensors, writes
from posttrain.models.weights.tensor_files import in_files, in_order, output_tensor, write_index, write_shard

TRAINED_ADAPTER = "default"
"""PEFT's name of the trained adapter; other adapters, such as a frozen copy, are not part of a checkpoint."""


def save_trained_weights(loaded: LoadedModel, folder: Path) -> None:
    """Write the adapter, or all weights if there is none, and the tokenizer, in PEFT's and transformers' formats.

    The processes that share a sharded model call it together, and the main process writes.
    """
    model = loaded.model
    if isinstance(model, PeftModel):
        adapters: dict[str, Any] = model.peft_config
        for config in adapters.values():
            for name in ("target_modules", "target_parameters"):
                if isinstance(names := getattr(config, name), set):
                    setattr(config, name, sorted(names))  # equal runs write equal files
        save_adapter(model, folder)
    elif loaded.sharded:
        _save_gathered(model, folder)
    else:
        model.save_pretrained(str(folder))
    if writes(model):
        loaded.tokenizer.save_pretrained(str(folder))


def save_adapter(model: Any, folder: Path, **options: Any) -> None:
    """Write the trained adapter in PEFT's format; `options` are those of its `save_pretrained`.

    The processes that share a sharded model call it together, and the main process writes.
    """
    state = whole_tensors(_trained(model), keep=writes(model)) if is_sharded(model) else None
    if writes(model):
        model.save_pretrained(str(folder), selected_adapters=[TRAINED_ADAPTER], state_dict=state, **options)


def _trained(model: Any) -> dict[str, torch.Tensor]:
    trained = {id(each) for each in model.parameters() if each.requires_grad}
    return {name: each for name, each in model.state_dict(keep_vars=True).items() if id(each) in trained}


def _save_gathered(model: Any, folder: Path) -> None:
    """Write all weights of a sharded model, one tensor in memory at a time."""
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    if get_checkpoint_conversion_mapping(model.config.model_type) is not None:
        # Several tensors become one in the files of this architecture, which transformers does with all in memory.
        gathered = whole_tensors(state, keep=writes(model))
        if writes(model):
            model.save_pretrained(str(folder), state_dict=gathered)
        return
    names = {id(each): name for name, each in reversed(state.items())}  # a tied head is not stored beside its embedding
    once = {name: each for name, each in state.items() if names[id(each)] == name}
    if writes(model):
        model.save_pretrained(str(folder), state_dict={})  # what is beside the weights
    files = in_files(output_tensor(name, each, partial(_gathered, each)) for name, each in once.items())
    for file, tensors in files.items():
        if writes(model):
            write_shard(folder / file, tensors, lambda: None)
        else:
            for each in in_order(tensors):
                each.make()
    if writes(model):
        write_index(folder, files)


def _gathered(tensor: torch.Tensor) -> torch.Tensor:
    return whole(tensor.detach()).cpu()


def load_trained_weights(model: Any, folder: Path) -> None:
    """Load the weights that `save_trained_weights` wrote into `model`.

    Raises:
        ModelError: the weights are not those of this model, or not safetensors.
    """
    is_adapter = isinstance(model, PeftModel)
    # Without these files, the loaders would load a pickle.
    written = "adapter_model.safetensors" if is_adapter else "model*.safetensors"
    if not any(folder.glob(written)):
        raise ModelError(
            f"{folder} is not a checkpoint written by this toolkit: it has no {written}; move it away to resume from "
            "an older one, or start a new run"
        )
    if is_sharded(model):
        missing = _load_shares(model, folder, is_adapter=is_adapter)
    elif is_adapter:
        # The base that the adapter's own config names is loaded already.
        found = model.load_adapter(str(folder), TRAINED_ADAPTER, is_trainable=True)
        missing = [name for name in found.missing_keys if f".{TRAINED_ADAPTER}" in name]
    else:
        missing = model.load_state_dict(_whole_model(model, folder).state_dict(), strict=False).missing_keys
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}")


def _load_shares(model: Any, folder: Path, *, is_adapter: bool) -> list[str]:
    """Load this process's share of the weights in `folder`; returns the names of those that it lacks."""
    if is_adapter:
        own = get_peft_model_state_dict(model, save_embedding_layers=False)
        saved = load_file(folder / "adapter_model.safetensors")
    else:
        own, saved = model.state_dict(), _whole_model(model, folder).state_dict()
    for name in own.keys() & saved.keys():
        copy_whole(saved[name], own[name])
    return sorted(own.keys() - saved.keys())


def _whole_model(model: Any, folder: Path) -> Any:
    """The model in `folder`, by the loader of `model`: weight names in the files may differ from those in the model."""
    return plain_class(model).from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True)
