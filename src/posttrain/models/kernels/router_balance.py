"""The load-balancing loss of routers, which keeps a model with experts from sending its tokens to a few of them.

It is the architecture's own function in transformers, of the logits of all routers: experts · Σᵢ fᵢ·Pᵢ, where fᵢ is the
share of tokens that choose expert i, and Pᵢ its mean probability (Switch Transformer, https://arxiv.org/abs/2101.03961,
equations 4 to 6). The product of two means does not split into micro-batches: here it is computed over the tokens that
go through the model together, and a step's is the mean over these passes, weighted by their tokens. A row's tokens
count up to its last label, since nothing after it is trained; padding does not count, and a prompt that several packed
rows share counts for each of them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getmodule
from typing import Any

import torch

from posttrain.errors import ModelError


class RouterBalance:
    """Attach once to a causal language model with routers; computes the loss of the passes within `counting`.

    Attributes:
        coefficient: the factor of this loss in the loss that is trained.
    """

    def __init__(self, model: Any, coefficient: float) -> None:
        """`model`: one of which `why_no_balance` gives None, with an adapter or without."""
        base = _base(model)
        self.coefficient = coefficient
        function = _function_of(base)
        assert function is not None
        self._function = function
        self._experts, self._chosen = base.num_experts, base.num_experts_per_tok
        self._weights: torch.Tensor | None = None
        self._found: list[torch.Tensor] = []
        decoder = base.get_decoder()
        # Asked for as a whole, the model would compute the loss itself, over padding too.
        decoder.register_forward_pre_hook(self._ask, with_kwargs=True)
        decoder.register_forward_hook(self._compute)

    @contextmanager
    def counting(self, weights: torch.Tensor) -> Iterator[None]:
        """Compute the loss of the passes in the block.

        Args:
            weights: how often each token counts, of the shape of the input's ids, float32.
        """
        self._weights = weights
        try:
            yield
        finally:
            self._weights = None

    def take(self) -> torch.Tensor:
        """Σ tokens · loss over the passes since the last call, shape [], with gradient."""
        found, self._found = self._found, []
        return torch.stack(found).sum()

    def _ask(self, decoder: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        asked = {} if self._weights is None else {"output_router_logits": True}
        return arguments, {**keywords, **asked}

    def _compute(self, decoder: Any, arguments: Any, output: Any) -> None:
        if self._weights is not None:
            loss = self._function(output.router_logits, self._experts, self._chosen, self._weights)
            self._found.append(self._weights.sum() * loss)


def router_balance(model: Any, wanted: float | None) -> RouterBalance | None:
    """Attach to `model` what computes its routers' loss; None if it is not to be counted.

    Args:
        wanted: the coefficient, 0 for none; None takes that of the model's config.

    Raises:
        ModelError: it is to be counted of a model whose loss is not supported, or that has none.
    """
    coefficient, reason = balance_of(model.config, wanted), why_no_balance(model)
    if coefficient and reason is not None:
        raise ModelError(f"training.router_loss: {reason}; set it to 0")
    return RouterBalance(model, coefficient) if coefficient else None


def balance_of(config: Any, wanted: float | None) -> float:
    """The coefficient for a model of this config, `wanted` or else its own; 0 if it has none."""
    return getattr(config.get_text_config(), "router_aux_loss_coef", 0.0) or 0.0 if wanted is None else wanted


def why_no_balance(model: Any) -> str | None:
    """Why transformers has no load-balancing loss for a model; None if it has."""
    base = _base(model)
    if not hasattr(base.config.get_text_config(), "router_aux_loss_coef"):
        return f"models of type {base.config.model_type} have no load-balancing loss"
    if _function_of(base) is None or not hasattr(base, "num_experts") or not hasattr(base, "num_experts_per_tok"):
        return f"the load-balancing loss of models of type {base.config.model_type} is not supported"
    return None


def _base(model: Any) -> Any:
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _function_of(base: Any) -> Callable[..., torch.Tensor] | None:
    return getattr(getmodule(type(base)), "load_balancing_loss_func", None)
