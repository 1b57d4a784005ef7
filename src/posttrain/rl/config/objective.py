"""What is optimised: the fields of TRL's GRPOConfig that make one algorithm or another."""

from typing import Annotated, Literal

from pydantic import Field

from posttrain.config.strict import StrictModel

Algorithm = Literal["grpo", "gspo", "dr_grpo", "dapo", "bnpo", "cispo", "rloo"]
LossType = Literal["grpo", "bnpo", "dr_grpo", "dapo", "cispo", "luspo"]


class ObjectiveConfig(StrictModel):
    """Replaces single fields of the algorithm's preset; what is left out stays as the preset has it."""

    loss_type: LossType | None = None
    """How token losses become one loss: mean per completion (grpo), per token of a micro-batch (bnpo) or of a step
    (dapo, cispo), sum over a constant (dr_grpo), or sum per completion (luspo)."""

    importance_sampling_level: Literal["token", "sequence"] | None = None
    """Whether a ratio of new to old policy belongs to each token or to a whole completion."""

    scale_rewards: Literal["group", "batch", "none"] | None = None
    """By which standard deviation advantages are divided."""

    beta: Annotated[float, Field(ge=0)] | None = None
    """Weight of the KL divergence from the model that training started with; 0 computes none."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    """How far the ratio may fall below 1 before it is clipped."""

    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """How far it may rise above 1; for cispo the largest ratio."""

    delta: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio for completions of negative advantage too (two-sided clipping)."""

    mask_truncated_completions: bool | None = None
    """Whether completions that were cut at the length limit are left out of the loss."""

    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] | None = None
    """Train only this share of the tokens: those at which the model is least certain."""
