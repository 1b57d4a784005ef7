"""What a forward pass of the loss has to compute, and whether it computes what the engine did."""

from typing import Any

import torch


def has_dropout(model: Any) -> bool:
    """Whether a training pass computes other probabilities than an evaluation pass."""
    config = model.config.get_text_config()
    layers = any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    return layers or any(getattr(config, name, 0) for name in ("attention_dropout", "attn_pdrop"))


def has_advantage(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Which completions are in the loss with an advantage that is not 0, shape [completions]."""
    advantages = inputs["advantages"]
    taught = (advantages if advantages.dim() == 1 else advantages.abs().sum(dim=1)) != 0
    return taught & inputs["completion_mask"].any(dim=1)


def taught_rows(inputs: dict[str, torch.Tensor], beta: float) -> torch.Tensor | None:
    """Which completions teach anything, shape [completions]; None where all have to be computed.

    A completion whose advantage is 0, as in a group whose rewards are all equal, has loss 0 and gradient 0, unless
    it is also held near the start by a KL divergence of weight `beta`. One is kept where none teaches, so that there
    is something to go backward through.
    """
    if beta:
        return None
    taught = has_advantage(inputs)
    if not taught.any():
        taught[0] = True
    return taught
