"""The trained weights in a checkpoint: an adapter, or a whole model."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from posttrain.errors import ModelError
from posttrain.models.backend import LoadedModel

TRAINED_ADAPTER = "default"
"""PEFT's name of the trained adapter; other adapters, such as a frozen copy, are not part of a checkpoint."""


def save_trained_weights(loaded: LoadedModel, folder: Path) -> None:
    """Write the adapter, or all weights if there is none, and the tokenizer, in PEFT's and transformers' formats."""
    if isinstance(loaded.model, PeftModel):
        adapters: dict[str, Any] = loaded.model.peft_config
        for config in adapters.values():
            if isinstance(config.target_modules, set):
                config.target_modules = sorted(config.target_modules)  # equal runs write equal files
        loaded.model.save_pretrained(str(folder), selected_adapters=[TRAINED_ADAPTER])
    else:
        loaded.model.save_pretrained(str(folder))
    loaded.tokenizer.save_pretrained(str(folder))


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
    if is_adapter:
        # The base that the adapter's own config names is loaded already.
        found = model.load_adapter(str(folder), TRAINED_ADAPTER, is_trainable=True)
        missing = [name for name in found.missing_keys if f".{TRAINED_ADAPTER}" in name]
    else:
        # Use the model's own loader: weight names in the files may differ from those in the model.
        saved = type(model).from_pretrained(str(folder), dtype=torch.float32, use_safetensors=True)
        missing = model.load_state_dict(saved.state_dict(), strict=False).missing_keys
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}")
