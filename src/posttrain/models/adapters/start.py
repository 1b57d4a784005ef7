"""Start an adapter from the base's own weights (`lora.init`), as plain LoRA on the unchanged base.

PiSSA and OLoRA take matrices A0 and B0 out of a weight W and train them: the layer has the weight
(W − s·B0·A0) + s·B·A, where B·A starts at B0·A0. PEFT rounds what is in parentheses and writes it over W, so that the
base is no longer a reference, and the adapter fits no base but this one. Here W stays, and one plain adapter of twice
the rank computes the same, s·(B·A − B0·A0): its matrices are [A; A0] and [B, −B0], of which the second halves do not
change. That is also what PEFT's `subtract_mutated_init` makes of them after training. Nothing else has to know of it:
checkpoints, merging, vLLM and the base as a reference are those of any adapter. (With A0 and B0 in a second, frozen
adapter, each of them would have to put the two together.)

LoftQ (arXiv:2310.08659) starts at what quantisation lost: with a quantised weight Q, B0·A0 is the best approximation of
(W − Q)/s of that rank. The same adapter is then trained on (Q + s·B0·A0) instead of W, which the layer under it
computes, and saved for the original base; with the quantised base alone, it lacks what B0·A0 made up for. Q is the
plain quantisation of W, as after one iteration of the paper's.

Hooks set the gradient of the second halves to zero, outside what torch.compile compiles. The optimizers in
config/sections/optim/optimizers.py then leave them as they are, bit for bit, except for weight decay, which
`require_training_fits` refuses.
"""

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig as PeftLoraConfig
from peft import inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_module_weight
from torch import nn
from torch.nn.functional import linear, pad

from posttrain.errors import ModelError
from posttrain.models.weights.checkpoint import TRAINED_ADAPTER

if TYPE_CHECKING:
    from posttrain.config.sections.model import LoraConfig


@torch.no_grad()
def start_from_weights(
    model: Any, lora: "LoraConfig | None", seed: int, unquantised: Callable[[], Any] | None = None
) -> None:
    """Fill a new adapter, which `peft_config` gave twice the rank; without `lora.init`, do nothing.

    The start depends only on the weights and, with `pissa_niter_16`, on `seed`.

    Args:
        unquantised: loads the base in full precision, for `loftq`.

    Raises:
        ModelError: a layer with an adapter is not linear, or smaller than the rank.
    """
    if lora is None or lora.init is None:
        return
    torch.manual_seed(seed)
    whole = unquantised() if lora.init == "loftq" and unquantised is not None else None
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLayer):
            _require_fits(name, layer.get_base_layer(), lora)
            down, up = _matrices(layer)
            if whole is None:
                first_down, first_up = _first_matrices(layer.get_base_layer(), lora)
            else:
                first_down, first_up = _lost_matrices(layer, whole.get_submodule(name).weight, lora.r)
                _make_up_for_loss(layer, lora.r)
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


def _lost_matrices(layer: Any, weight: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A0 [rank, in] and B0 [out, rank] in float32: s·B0·A0 is nearest to what quantisation took from `weight`."""
    base, (down, up) = layer.get_base_layer(), _matrices(layer)
    if (kept := dequantize_module_weight(base)) is base.weight:  # not a quantised layer
        return down[:rank].clone(), torch.zeros_like(up[:, :rank])
    lost = (weight.to(kept.device, torch.float32) - kept.float()) / layer.scaling[TRAINED_ADAPTER]
    left, sizes, right = torch.linalg.svd(lost, full_matrices=False)
    roots = sizes[:rank].sqrt()
    return roots[:, None] * right[:rank], left[:, :rank] * roots


def _make_up_for_loss(layer: Any, rank: int) -> None:
    """Let the layer under the adapter add s·B0·A0, whose matrices are the adapter's second halves [A0] and [−B0]."""
    scaling = layer.scaling[TRAINED_ADAPTER]

    def add(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        (x,), (down, up) = inputs, _matrices(layer)
        low = linear(x, down[rank:].detach().to(x.dtype))
        return output - scaling * linear(low, up[:, rank:].detach().to(x.dtype))

    layer.get_base_layer().register_forward_hook(add)


def _require_fits(name: str, layer: Any, lora: "LoraConfig") -> None:
    if not isinstance(layer, nn.Linear):
        raise ModelError(
            f"lora.init: {lora.init} starts from the weights of linear layers, and {name} is none; name others in "
            "lora.target_modules, or set init to null"
        )
    most = min(layer.in_features, layer.out_features)
    if lora.r > most:
        raise ModelError(f"lora.init: {lora.init} takes lora.r {lora.r} of the {most} directions of {name}; lower r")
