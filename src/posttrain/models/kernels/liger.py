"""Liger's Triton kernels in the place of a model's own RMSNorm, RoPE and MLP activation."""

from typing import Any

from posttrain.errors import ModelError

# The toolkit's losses compute the head only where a token is trained, and have no use for Liger's fused ones.
_KERNELS = {"cross_entropy": False, "fused_linear_cross_entropy": False}


def use_liger_kernels(model: Any) -> None:
    """Change `model`, of transformers and without an adapter yet, in place.

    RoPE is replaced for all models of the architecture in this process: that is how Liger does it.

    Raises:
        ModelError: Liger has no kernels for this architecture, of which it would say nothing itself.
    """
    from liger_kernel.transformers.monkey_patch import (  # pyright: ignore[reportMissingImports]
        MODEL_TYPE_TO_APPLY_LIGER_FN,
    )
    from transformers.integrations.liger import apply_liger_kernel

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ModelError(
            f"training.liger_kernel: Liger has no kernels for models of type {model.config.model_type}; set it to false"
        )
    apply_liger_kernel(model, _KERNELS)
