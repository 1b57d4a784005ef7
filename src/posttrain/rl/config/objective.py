"""What reinforcement learning optimises: the parts that make one algorithm or another."""

from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from posttrain.config.strict import StrictModel
from posttrain.config.values import FunctionPlace

Algorithm = Literal["grpo", "gspo", "dr_grpo", "dapo", "bnpo", "cispo", "rloo"]


class UserFunction(StrictModel):
    """A function of your own; its file's content and the options are part of what a run is."""

    path: FunctionPlace
    """`file.py:function`, relative to this file."""

    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """What the function is given as its last argument."""


class ObjectiveConfig(StrictModel):
    """Replaces single fields of the algorithm's preset; what is left out stays as the preset has it."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] | None = None
    """What is taken from a reward: the mean of its prompt's rewards, that of the prompt's other rewards, the mean of
    all rewards of the generation, or nothing."""

    scale_rewards: Literal["group", "batch", "none"] | None = None
    """By which standard deviation advantages are divided."""

    advantage: UserFunction | None = None
    """In the place of both: `f(rewards, lengths, options)` gives advantages of the shape of `rewards`, which is
    [groups, generations] with NaN where there is no reward; `lengths` are the completions' tokens."""

    policy_loss: Literal["clip", "cispo"] | UserFunction | None = None
    """The loss of a token: the ratio of new to old policy, clipped, times the advantage (clip); its log-probability,
    weighted by the clipped ratio (cispo); or `f(inputs, options)` of your own, of shape [completions, tokens]."""

    importance_sampling_level: Literal["token", "sequence", "sequence_sum"] | None = None
    """Whether a ratio of new to old policy belongs to each token, to a whole completion as the geometric mean of its
    tokens' (sequence), or as their product (sequence_sum)."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    """How far the ratio may fall below 1 before it is clipped."""

    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """How far it may rise above 1; for cispo the largest ratio."""

    delta: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio for completions of negative advantage too (two-sided clipping)."""

    aggregation: (
        Literal["completion_mean", "completion_sum", "step_tokens", "micro_batch_tokens", "constant"] | None
    ) = None
    """How the losses of tokens become one: their mean or sum in each completion, of which the mean is taken; their mean
    over all tokens of the optimizer step or of the micro-batch; or their sum over completions × rollout.max_new_tokens
    (constant)."""

    beta: Annotated[float, Field(ge=0)] | None = None
    """Weight of the KL divergence from the model that training started with; 0 computes none."""

    kl_estimator: Literal["k2", "k3", "k3_corrected"] | None = None
    """How it is estimated from samples: ½ (log ratio)², the unbiased and positive r − 1 − log r, or that times the
    ratio of new to old policy."""

    mask_truncated_completions: bool | None = None
    """Whether completions that were cut at the length limit are left out of the loss."""

    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] | None = None
    """Train only this share of the step's tokens: those at which the model is least certain."""

    @field_validator("advantage", mode="after")
    @classmethod
    def _stands_alone(cls, advantage: UserFunction | None, info: ValidationInfo) -> UserFunction | None:
        given = [name for name in ("baseline", "scale_rewards") if info.data.get(name) is not None]
        if advantage is not None and given:
            raise ValueError(f"a function of your own takes the place of {' and '.join(given)}; leave that out")
        return advantage
