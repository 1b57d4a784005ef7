"""The algorithms by name, each with its paper and the parts that it is made of."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from posttrain.rl.config.objective import Algorithm, ObjectiveConfig, UserFunction


@dataclass(frozen=True)
class Objective:
    """Everything that decides what is optimised, under the names of `ObjectiveConfig`."""

    baseline: Literal["group", "leave_one_out", "batch", "none"] = "group"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    advantage: UserFunction | None = None
    policy_loss: Literal["clip", "cispo"] | UserFunction = "clip"
    importance_sampling_level: Literal["token", "sequence", "sequence_sum"] = "token"
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    aggregation: Literal["completion_mean", "completion_sum", "step_tokens", "micro_batch_tokens", "constant"] = (
        "completion_mean"
    )
    beta: float = 0.0
    kl_estimator: Literal["k2", "k3", "k3_corrected"] = "k3_corrected"
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0

    def fields(self) -> dict[str, Any]:
        """The values by their names."""
        return asdict(self)


@dataclass(frozen=True)
class Preset:
    """One algorithm.

    Attributes:
        paper: where it is described.
        note: what differs from the paper, and what it wants of the rest of the config; empty where nothing does.
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
        "without dynamic sampling: groups whose rewards are all equal are kept, and teach nothing; the penalty for "
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
        Objective(aggregation="micro_batch_tokens"),
        "its token mean is that of each micro-batch",
    ),
    "cispo": Preset("arXiv:2506.13585", Objective(policy_loss="cispo", epsilon_high=5.0, aggregation="step_tokens")),
    "rloo": Preset(
        "arXiv:2402.14740",
        Objective(baseline="leave_one_out", scale_rewards="none", importance_sampling_level="sequence_sum"),
        "with objective.beta the KL divergence is a term of the loss, where the paper has it in the reward",
    ),
}


def resolve_objective(algorithm: Algorithm, overrides: ObjectiveConfig) -> Objective:
    """The preset, with the fields that the config sets in their place."""
    given = {name: value for name in ObjectiveConfig.model_fields if (value := getattr(overrides, name)) is not None}
    objective = PRESETS[algorithm].objective
    if "epsilon" in given and "epsilon_high" not in given and objective.epsilon_high == objective.epsilon:
        given["epsilon_high"] = given["epsilon"]  # a preset that clips alike on both sides goes on to
    return replace(objective, **given)
