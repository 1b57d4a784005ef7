"""Config section `lora`: the shape of the adapter."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.sections.model import ModelConfig
from posttrain.config.strict import StrictModel


class LoraConfig(StrictModel):
    """A LoRA adapter (arXiv:2106.09685). `lora: null` in a config means full fine-tuning."""

    r: int = Field(default=16, ge=1)
    """Rank of the update."""

    alpha: float = Field(default=32, gt=0)
    """Scale of the update: alpha / r, or alpha / sqrt(r) with `rslora`."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the adapter's input, during training only."""

    target_modules: Literal["auto", "all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = "all-linear"
    """Which layers get an adapter: every linear layer, PEFT's choice for the architecture (`auto`), or names."""

    rslora: bool = False
    """Rank-stabilised scale (arXiv:2312.03732): worth having from about r = 64."""

    dora: bool = False
    """Learn magnitude and direction apart (DoRA, arXiv:2402.09353): slower, sometimes better at a low rank."""

    modules_to_save: tuple[str, ...] = ()
    """Modules trained in full and saved beside the adapter, such as `embed_tokens` and `lm_head`."""


def require_lora_fits(lora: LoraConfig | None, model: ModelConfig | None) -> LoraConfig | None:
    """The section as it is; ValueError where the model section contradicts it (None if that is wrong itself)."""
    if model is not None and model.adapter is not None and lora != LoraConfig():
        raise ValueError("model.adapter brings its own shape; leave the lora section out")
    if model is not None and model.quantization != "none" and lora is None:
        raise ValueError("quantised weights cannot be trained in full; keep the lora section or drop quantization")
    return lora
