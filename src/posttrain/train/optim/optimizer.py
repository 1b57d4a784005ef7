"""The optimizer and its update: unscale, clip, step."""

from typing import Any

import torch
from torch import nn

from posttrain.config.sections.training import TrainingConfig


def make_optimizer(model: nn.Module, training: TrainingConfig) -> torch.optim.Optimizer:
    """The optimizer that the config names, over the trainable parameters; its learning rate is set at each step.

    Weight decay applies to matrices only: biases and norm weights have one dimension and are exempt.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [each for each in trained if each.ndim > 1], "weight_decay": training.weight_decay},
        {"params": [each for each in trained if each.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate)
    adam: dict[str, Any] = {"betas": (training.beta1, training.beta2), "eps": training.epsilon}
    if training.optimizer == "adamw_8bit":
        return _eight_bit_adam(model, groups, lr=training.learning_rate, **adam)
    return torch.optim.AdamW(groups, lr=training.learning_rate, fused=True, **adam)


def _eight_bit_adam(model: nn.Module, groups: list[dict[str, Any]], **settings: Any) -> torch.optim.Optimizer:
    import bitsandbytes  # pyright: ignore[reportMissingImports]  # installed where there is CUDA

    # 8-bit states of embeddings are unstable: https://huggingface.co/docs/bitsandbytes/optimizers.
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return bitsandbytes.optim.AdamW8bit(groups, **settings)


def update(
    optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, learning_rate: float, max_grad_norm: float
) -> float:
    """Update the weights with the accumulated gradients, and clear these; return the gradient norm before clipping.

    Args:
        scaler: scales the loss in float16, where a step whose gradient overflowed is skipped; disabled in other dtypes.
        max_grad_norm: gradients with a larger norm are scaled down to it; 0 disables clipping.
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    scaler.unscale_(optimizer)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    norm = nn.utils.get_total_norm([each.grad for each in trained if each.grad is not None])
    if max_grad_norm > 0:
        nn.utils.clip_grads_with_norm_(trained, max_grad_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return float(norm)
