"""The keys of `rollout` that say which groups are rejected, and what becomes of them."""

from typing import Literal

from pydantic import Field, model_validator

from posttrain.config.strict import StrictModel
from posttrain.rl.rollout.filters.catalogue import AnyFilter


class RejectionConfig(StrictModel):
    """Which groups are not worth training on, and what is trained in their place."""

    filters: tuple[AnyFilter, ...] = ()
    """Rejects groups that would teach nothing or the wrong thing; the first filter that rejects a group is counted."""

    rejected: Literal["keep", "substitute", "drop"] = "keep"
    """What to do with a rejected group: train it all the same, only counting it; try another row of the same data set
    in its place; or leave it out, which makes the step smaller."""

    attempts: int = Field(default=2, ge=1, le=4)
    """How many substitutes are tried for a rejected group before it is trained as it is; the dataserver deals out at
    most 4."""

    over_sampling: float = Field(default=1.0, ge=1, le=2)
    """Generate spare groups at once instead of after a rejection: 1.5 asks half as many again of each data set, which
    takes fewer rounds and more tokens."""

    stop_without_signal: int = Field(default=20, ge=1)
    """Stop after this many optimizer steps in a row in which the filters rejected every group."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> "RejectionConfig":
        if self.rejected != "keep" and not self.filters:
            raise ValueError(f"rejected: {self.rejected} without filters, so nothing is rejected; give filters")
        if self.over_sampling > 1 and self.rejected != "substitute":
            raise ValueError(
                f"over_sampling: {self.over_sampling:g} asks for spare groups, which only rejected: substitute uses"
            )
        return self
