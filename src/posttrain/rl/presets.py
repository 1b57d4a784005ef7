"""The algorithms as presets of TRL's GRPOConfig: name, paper, fields, and what is missing."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from posttrain.rl.config.objective import Algorithm, LossType, ObjectiveConfig


@dataclass(frozen=True)
class Objective:
    """Every field of GRPOConfig that decides what is optimised, under TRL's names."""

    loss_type: LossType = "grpo"
    importance_sampling_level: str = "token"
    scale_rewards: str = "group"
    beta: float = 0.0
    epsilon: float = 0.2
    epsilon_high: float = 0.2
    delta: float | None = None
    mask_truncated_completions: bool = False
    top_entropy_quantile: float = 1.0

    def as_arguments(self) -> dict[str, Any]:
        """Keyword arguments of GRPOConfig."""
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
    "grpo": Preset("arXiv:2402.03300", Objective(beta=0.04)),
    "dr_grpo": Preset("arXiv:2503.20783", Objective(loss_type="dr_grpo", scale_rewards="none")),
    "dapo": Preset(
        "arXiv:2503.14476",
        Objective(loss_type="dapo", epsilon_high=0.28, mask_truncated_completions=True),
        "without dynamic sampling: groups whose rewards are all equal are kept, and teach nothing; the penalty for "
        "overlong answers is the grader length_soft",
    ),
    "gspo": Preset(
        "arXiv:2507.18071",
        Objective(importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4),
        "clips only where a generation serves several optimizer steps, as in the paper: rollout.steps_per_generation "
        "of 4 × the accumulation steps",
    ),
    "bnpo": Preset("arXiv:2506.02864", Objective(loss_type="bnpo"), "its token mean is that of each micro-batch"),
    "cispo": Preset("arXiv:2506.13585", Objective(loss_type="cispo", epsilon_high=5.0)),
    "rloo": Preset(
        "arXiv:2402.14740",
        Objective(loss_type="luspo", scale_rewards="none"),
        "the baseline holds the completion itself, so the gradient is (G − 1)/G times the paper's; equal to it only "
        "where a generation serves one optimizer step",
    ),
}


def resolve_objective(algorithm: Algorithm, overrides: ObjectiveConfig) -> Objective:
    """The preset, with the fields that the config sets in their place."""
    given = {name: value for name, value in overrides.model_dump().items() if value is not None}
    objective = PRESETS[algorithm].objective
    if "epsilon" in given and "epsilon_high" not in given and objective.epsilon_high == objective.epsilon:
        given["epsilon_high"] = given["epsilon"]  # a preset that clips alike on both sides goes on to
    return replace(objective, **given)
