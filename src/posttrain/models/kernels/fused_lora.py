"""A LoRA layer for CPUs: PEFT's arithmetic with fewer passes over memory.

On a CPU, a small model spends most of its time not in matrix products but in reading and writing activations. PEFT's
layer writes x·Aᵀ·Bᵀ, its scaled copy and the sum as three tensors of the output's size, keeps two of them for the
backward pass, and does the same for the input's gradient. Here the scale is applied at the low rank, and both sums are
computed inside the matrix products. It is one autograd function, so only the input and the small x·Aᵀ are kept.

In 16 bits the base's product is added to LoRA's, inside one product in float32, and not the other way round: LoRA's
part is small at first, and added to an output that is rounded already, what is below half a unit of it would be lost.

It is registered through the hook that PEFT documents for custom layers. Anything but the plain case (dropout, DoRA,
several adapters at once, merged or disabled ones) goes through PEFT's own code.
"""

from typing import Any

import torch
from peft.tuners import lora
from torch import nn


class FusedLinear(lora.Linear):
    """A linear layer with LoRA adapters that computes the active adapter together with the base layer."""

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Map x, of shape [..., in_features], to shape [..., out_features]."""
        adapter = None if args or kwargs else self._only_adapter()
        base = self.get_base_layer()
        if adapter is None or x.dtype != base.weight.dtype or _computes_in_another(x):
            return super().forward(x, *args, **kwargs)
        return _LinearWithLora.apply(
            x,
            base.weight,
            base.bias,
            self.lora_A[adapter].weight.to(x.dtype),
            self.lora_B[adapter].weight.to(x.dtype),
            self.scaling[adapter],
        )

    def _only_adapter(self) -> str | None:
        """The active adapter if it is the only one and plain; None if PEFT's code has to compute the layer."""
        if self.disable_adapters or self.merged:
            return None
        active = [name for name in self.active_adapters if name in self.lora_A]
        if len(active) != 1 or active[0] in self.lora_variant or self.lora_bias[active[0]]:
            return None
        dropout = self.lora_dropout[active[0]]
        return None if self.training and not isinstance(dropout, nn.Identity) else active[0]


def _computes_in_another(x: torch.Tensor) -> bool:
    """Whether autocast makes a linear layer compute in a dtype other than that of x."""
    kind = x.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != x.dtype


class _LinearWithLora(torch.autograd.Function):
    """y = x·Wᵀ + b + s·x·Aᵀ·Bᵀ, where W and b are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        down: torch.Tensor,
        up: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        """`down` is A [rank, in], `up` is B [out, rank]; x and all weights have one dtype."""
        rows = x.reshape(-1, x.shape[-1])
        low = (rows @ down.T).mul_(scaling)
        result = (low @ up.T).addmm_(rows, weight.T)
        if bias is not None:
            result += bias
        ctx.save_for_backward(rows, low, weight, down, up)
        ctx.scaling = scaling
        return result.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Gradients of x, A and B."""
        rows, low, weight, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        of_low = (gradient @ up).mul_(ctx.scaling)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = (of_low @ down).addmm_(gradient, weight).view(*gradients[0].shape[:-1], -1)
        of_down = of_low.T @ rows if ctx.needs_input_grad[3] else None
        of_up = gradient.T @ low if ctx.needs_input_grad[4] else None
        return of_x, None, None, of_down, of_up, None
