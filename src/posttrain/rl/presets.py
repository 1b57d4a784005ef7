"""Algorithms by name: settings, paper, and what a config may override."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from posttrain.config.sections.engines import Correction
from posttrain.config.strict import StrictModel
from posttrain.config.values import FunctionPlace

Algorithm = Literal["grpo", "gspo", "dr_grpo", "dapo", "bnpo", "cispo", "rloo"]
Baseline = Literal["group", "leave_one_out", "batch", "none"]
Scale = Literal["group", "batch", "none"]
PolicyLoss = Literal["clip", "cispo"]
Level = Literal["token", "sequence", "sequence_sum"]
Estimator = Literal["k2", "k3", "k3_corrected"]
Aggregation = Literal["completion_mean", "completion_sum", "step_tokens", "micro_batch_mean", "constant"]


@dataclass(frozen=True)
class SamplingCorrection:
    """How the loss corrects for completions that other probabilities sampled than the model's own.

    Attributes:
        kind: none, or what becomes of a ratio out of range: it is cut to the range (truncate) or left out (mask), per
            token or per completion.
        limit: the highest ratio in range.
        floor: the lowest ratio in range; None sets none.
        against_behaviour: whether the policy's own ratio is taken against the probabilities that sampled instead of the
            model's when the step began; then there is no other correction.
    """

    kind: Correction = "none"
    limit: float = 3.0
    floor: float | None = None
    against_behaviour: bool = False

    @property
    def needs_logprobs(self) -> bool:
        """Whether the probabilities that sampled are needed."""
        return self.kind != "none" or self.against_behaviour


class UserFunction(StrictModel):
    """A function of your own; its file's content and its options are part of the run's identity."""

    path: FunctionPlace
    """`file.py:function`, relative to this config file."""

    options: dict[str, JsonValue] = Field(default_factory=dict[str, JsonValue])
    """Passed to the function as its last argument."""


class ObjectiveConfig(StrictModel):
    """Overrides single settings of the algorithm's preset; those left out keep the preset's values."""

    baseline: Baseline | None = None
    """What is subtracted from a reward: the mean of its prompt's rewards, the mean of the prompt's other rewards, the
    mean of all rewards of the generation, or nothing."""

    scale_rewards: Scale | None = None
    """Which standard deviation to divide advantages by."""

    advantage: UserFunction | None = None
    """Replaces both: `f(rewards, lengths, options)` returns advantages of the same shape as `rewards`, which is
    [groups, generations] with NaN for a missing reward; `lengths` are the completions' lengths in tokens."""

    policy_loss: PolicyLoss | UserFunction | None = None
    """The loss of a token: the ratio of new to old policy, clipped, times the advantage (clip); its log-probability,
    weighted by the clipped ratio (cispo); or your own `f(inputs, options)`, of shape [completions, tokens]."""

    importance_sampling_level: Level | None = None
    """Whether the ratio of new to old policy is taken per token, or per completion as the geometric mean (sequence) or
    the product (sequence_sum) of its tokens' ratios."""

    epsilon: Annotated[float, Field(gt=0)] | None = None
    """How far the ratio may fall below 1 before it is clipped."""

    epsilon_high: Annotated[float, Field(gt=0)] | None = None
    """How far the ratio may rise above 1 before it is clipped; for cispo, the largest ratio itself."""

    delta: Annotated[float, Field(gt=1)] | None = None
    """Largest ratio for completions with a negative advantage too (two-sided clipping)."""

    aggregation: Aggregation | None = None
    """How token losses are combined: the mean over completions of each one's mean or sum; the mean over all tokens of
    the optimizer step or of the micro-batch; or the sum divided by completions × rollout.max_new_tokens (constant)."""

    beta: Annotated[float, Field(ge=0)] | None = None
    """Weight of the KL divergence from the model at the start of training; at 0 it is not computed."""

    kl_estimator: Estimator | None = None
    """How the KL divergence is estimated from samples: ½ (log ratio)² (k2); r − 1 − log r, which is unbiased and
    positive (k3); or that times the ratio of new to old policy (k3_corrected)."""

    mask_truncated_completions: bool | None = None
    """Whether completions cut off at the length limit are left out of the loss."""

    top_entropy_quantile: Annotated[float, Field(gt=0, le=1)] | None = None
    """Train on only this share of the step's tokens: those where the model is least certain."""

    @field_validator("advantage", mode="after")
    @classmethod
    def _stands_alone(cls, advantage: UserFunction | None, info: ValidationInfo) -> UserFunction | None:
        given = [name for name in ("baseline", "scale_rewards") if info.data.get(name) is not None]
        if advantage is not None and given:
            raise ValueError(f"a function of your own replaces {' and '.join(given)}; leave that out")
        return advantage


@dataclass(frozen=True)
class Objective:
    """All settings of an objective, named as in `ObjectiveConfig`."""

    baseline: Baseline = "group"
    scale_rewards: Scale = "group"
    advantage: UserFunction | None = None
    policy_loss: PolicyLoss | UserFunction = "clip"
    importance_sampling_level: Level = "token"
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    aggregation: Aggregation = "completion_mean"
    beta: float = 0.0
    kl_estimator: Estimator = "k3_corrected"
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0


@dataclass(frozen=True)
class Preset:
    """One algorithm.

    Attributes:
        paper: the paper that describes it.
        note: how it differs from the paper, and what it needs elsewhere in the config; empty if neither applies.
    """

    paper: str
    objective: Objective
    note: str = ""


PRESETS: dict[Algorithm, Preset] = {
    "grpo": Preset(
        "arXiv:2402.03300",
        Objective(beta=0.04),
        "the KL divergence has the gradient of arXiv:2512.02556; kl_estimator: k3 is the paper's",
    ),
    "dr_grpo": Preset("arXiv:2503.20783", Objective(scale_rewards="none", aggregation="constant")),
    "dapo": Preset(
        "arXiv:2503.14476",
        Objective(epsilon_high=0.28, aggregation="step_tokens", mask_truncated_completions=True),
        "dynamic sampling needs rollout.filters: [{kind: reward_spread}] and rollout.rejected: substitute; without it, "
        "groups whose rewards are all equal are kept, and teach nothing; the penalty for "
        "overlong answers is the grader length_soft",
    ),
    "gspo": Preset(
        "arXiv:2507.18071",
        Objective(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
        "clips only where a generation serves several optimizer steps, as in the paper: "
        "rollout.steps_per_generation: 4",
    ),
    "bnpo": Preset(
        "arXiv:2506.02864",
        Objective(aggregation="micro_batch_mean"),
        "the token mean is taken over each micro-batch",
    ),
    "cispo": Preset("arXiv:2506.13585", Objective(policy_loss="cispo", epsilon_high=5.0, aggregation="step_tokens")),
    "rloo": Preset(
        "arXiv:2402.14740",
        Objective(baseline="leave_one_out", scale_rewards="none", importance_sampling_level="sequence_sum"),
        "with objective.beta the KL divergence is a term of the loss; the paper has it in the reward",
    ),
}


def resolve_objective(algorithm: Algorithm, overrides: ObjectiveConfig) -> Objective:
    """The algorithm's preset, with the config's overrides."""
    given = {name: value for name in ObjectiveConfig.model_fields if (value := getattr(overrides, name)) is not None}
    objective = PRESETS[algorithm].objective
    if "epsilon" in given and "epsilon_high" not in given and objective.epsilon_high == objective.epsilon:
        given["epsilon_high"] = given["epsilon"]  # a symmetric preset stays symmetric
    return replace(objective, **given)
