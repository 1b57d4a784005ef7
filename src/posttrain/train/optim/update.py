"""Update the weights: unscale, clip, step."""

from collections.abc import Sequence

import torch
from torch import nn

from posttrain.models.weights.sharding import whole


def update(
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler,
    learning_rate: float,
    max_grad_norm: float,
) -> float:
    """Update the weights with the accumulated gradients, and clear these; return the gradient norm before clipping.

    Args:
        optimizers: each has some of the weights; a group's `lr_ratio`, if it has one, multiplies its learning rate.
        scaler: scales the loss in float16, where a step whose gradient overflowed is skipped; disabled in other dtypes.
        max_grad_norm: gradients with a larger norm are scaled down to it; 0 disables clipping.
    """
    trained = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * group.get("lr_ratio", 1.0)
            trained += group["params"]
        scaler.unscale_(optimizer)
    norm = whole(nn.utils.get_total_norm([each.grad for each in trained if each.grad is not None]))
    if max_grad_norm > 0:
        nn.utils.clip_grads_with_norm_(trained, max_grad_norm, norm)
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
    return float(norm)
