"""Base weights in 4 or 8 bits, by bitsandbytes."""

from typing import TYPE_CHECKING, Any

import torch
from transformers import BitsAndBytesConfig

if TYPE_CHECKING:
    from posttrain.config.sections.model import ModelConfig


def quantization_settings(config: "ModelConfig", dtype: torch.dtype) -> BitsAndBytesConfig:
    """What transformers' loader is told for `config.quantization`, which is not none; `dtype` is computed in."""
    if config.quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def is_quantised(model: Any) -> bool:
    """Whether transformers loaded `model` quantised."""
    return getattr(model, "is_quantized", False)


def keep_layout(model: Any) -> None:
    """Keep the 4-bit weights of `model` as they were loaded.

    In evaluation on a CPU with AVX512-BF16, bitsandbytes 0.50 rearranges them in place for a product of its own, which
    has no gradient: after an evaluation, nothing below such a layer would be trained.
    """
    if is_quantised(model):
        from bitsandbytes.nn import Linear4bit

        for module in model.modules():
            if isinstance(module, Linear4bit):
                module.support_avx512bf16_for_cpu = False
