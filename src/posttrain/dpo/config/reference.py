"""What the trained model is compared with: the reference policy, π_ref in the formulas of the methods."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from posttrain.config.sections.model import ModelConfig
from posttrain.config.strict import ConfigPath, StrictModel


class CachedReference(StrictModel):
    """The model as training starts; its log-probabilities are computed once and kept."""

    type: Literal["cached"] = "cached"
    """Log-probabilities of the model as training starts, computed once before training and kept in the cache."""


class LiveReference(StrictModel):
    """The model as training starts, asked at every step."""

    type: Literal["live"]
    """The same, computed at every step: the base under a new adapter, else a frozen copy of what is trained."""


class SeparateReference(ModelConfig):
    """Another model, which is frozen and stays in memory beside the trained one."""

    type: Literal["model"]
    """Another model of the same tokenizer, frozen, asked at every step."""

    adapter: ConfigPath | None = None
    """Folder of a LoRA adapter of this model."""

    _key: str = PrivateAttr("reference")


def _cached_by_default(value: object) -> object:
    return {"type": "cached", **value} if isinstance(value, dict) and "type" not in value else value


AnyReference = Annotated[
    Annotated[CachedReference | LiveReference | SeparateReference, Field(discriminator="type")],
    BeforeValidator(_cached_by_default),
]
"""The reference policy; cached where no type is given."""
