"""Start an adapter from the base's own weights (`lora.init`), as plain LoRA on the unchanged base.

PiSSA and OLoRA take matrices A0 and B0 out of a weight W and train them: the layer has the weight
(W − s·B0·A0) + s·B·A, where B·A starts at B0·A0. PEFT rounds what is in parentheses and writes it over W, so that the
base is no longer a reference, and the adapter fits no base but this one. Here W stays, and one plain adapter of twice
the rank computes the same, s·(B·A − B0·A0): its matrices are [A; A0] and [B, −B0], of which the second halves do not
change. That is also what PEFT's `subtract_mutated_init` makes of them after training. Nothing else has to know of it:
checkpoints, merging, vLLM and the base as a reference are those of any adapter. (With A0 and B0 in a second, frozen
adapter, each of them would have to put the two together.)

Hooks set the gradient of the second halves to zero, outside what torch.compile compiles. The optimizers in
config/sections/optimizers.py then leave them as they are, bit for bit, except for weight decay, which
`require_training_fits` refuses.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import nn
from torch.nn.functional import pad

from posttrain.errors import ModelError
from posttrain.models.checkpoint import TRAINED_ADAPTER

if TYPE_CHECKING:
    from posttrain.config.sections.model import LoraConfig


@torch.no_grad()
def start_from_weights(model: Any, lora: "LoraConfig | None", seed: int) -> None:
    """Fill a new adapter, which `peft_config` gave twice the rank; without `lora.init`, do nothing.

    The start depends only on the weights and, with `pissa_niter_16`, on `seed`.

    Raises:
        ModelError: a layer with an adapter is not linear, or smaller than the rank.
    """
    if lora is None or lora.init is None:
        return
    torch.manual_seed(seed)
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            _require_fits(name, layer.get_base_layer(), lora)
            first_down, first_up = _first_matrices(layer.get_base_layer(), lora)
            down, up = _matrices(layer)
            down.copy_(torch.cat([first_down, first_down]))
            up.copy_(torch.cat([first_up, -first_up], dim=1))
            _freeze_second_halves(down, up, lora.r)


def _matrices(layer: Any) -> tuple[Any, Any]:
    """The weights A and B of a LoRA layer."""
    return layer.lora_A[TRAINED_ADAPTER].weight, layer.lora_B[TRAINED_ADAPTER].weight


def _freeze_second_halves(down: Any, up: Any, rank: int) -> None:
    """Make the gradients of A [2·rank, in] and B [out, 2·rank] zero beyond the first `rank` rows and columns."""
    down.register_hook(lambda gradient: pad(gradient[:rank], (0, 0, 0, rank)))
    up.register_hook(lambda gradient: pad(gradient[:, :rank], (0, rank)))


def _first_matrices(layer: nn.Module, lora: "LoraConfig") -> tuple[torch.Tensor, torch.Tensor]:
    """A0 [r, in] and B0 [out, r] in float32, which PEFT takes out of the weight of a copy of `layer`."""
    config = PeftLoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # pyright: ignore[reportArgumentType]  # PEFT divides it: a float is as good
        use_rslora=lora.rslora,
        init_lora_weights=lora.init,  # pyright: ignore[reportArgumentType]  # PEFT takes any number after niter
        target_modules=["layer"],
    )
    container = nn.ModuleDict({"layer": copy.deepcopy(layer).float()})
    inject_adapter_in_model(config, container, TRAINED_ADAPTER)
    return _matrices(container["layer"])


def _require_fits(name: str, layer: Any, lora: "LoraConfig") -> None:
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"lora.init: {lora.init} starts from the weights of linear layers, and {name} is none; name others in "
            "lora.target_modules, or set init to null"
        )
    most = min(layer.weight.shape)
    if lora.r > most:
        raise ModelError(f"lora.init: {lora.init} takes lora.r {lora.r} of the {most} directions of {name}; lower r")
