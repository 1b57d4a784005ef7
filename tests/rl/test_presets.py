"""Each preset matches the algorithm it is named after, and the config overrides it."""

from dataclasses import replace
from typing import Any

import pytest

from posttrain.rl.presets import PRESETS, Algorithm, Objective, ObjectiveConfig, resolve_objective

# Differences from GRPO without a divergence.
WANTED: dict[Algorithm, dict[str, Any]] = {
    "grpo": {"beta": 0.04},
    "dr_grpo": {"scale_rewards": "none", "aggregation": "constant"},
    "dapo": {"epsilon_high": 0.28, "aggregation": "step_tokens", "mask_truncated_completions": True},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "bnpo": {"aggregation": "micro_batch_mean"},
    "cispo": {"policy_loss": "cispo", "epsilon_high": 5.0, "aggregation": "step_tokens"},
    "rloo": {"baseline": "leave_one_out", "scale_rewards": "none", "importance_sampling_level": "sequence_sum"},
}


def test_every_preset_is_checked_here() -> None:
    assert WANTED.keys() == PRESETS.keys()


@pytest.mark.parametrize("algorithm", WANTED)
def test_a_preset_is_what_its_name_says(algorithm: Algorithm) -> None:
    assert resolve_objective(algorithm, ObjectiveConfig()) == replace(Objective(), **WANTED[algorithm])


def test_what_the_config_says_wins_over_the_preset() -> None:
    changes: dict[str, Any] = {
        "baseline": "none",
        "scale_rewards": "batch",
        "policy_loss": "clip",
        "importance_sampling_level": "sequence",
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "delta": 4.0,
        "aggregation": "completion_sum",
        "beta": 0.5,
        "kl_estimator": "k2",
        "mask_truncated_completions": True,
        "top_entropy_quantile": 0.2,
    }
    for algorithm in PRESETS:
        assert resolve_objective(algorithm, ObjectiveConfig(**changes)) == Objective(**changes)


@pytest.mark.parametrize(
    ("algorithm", "high"),
    # One number sets both sides, unless the preset has separate values.
    [("grpo", 0.1), ("dr_grpo", 0.1), ("dapo", 0.28), ("gspo", 4e-4), ("cispo", 5.0)],
)
def test_one_clipping_number_is_for_both_sides_where_the_preset_has_one(algorithm: Algorithm, high: float) -> None:
    objective = resolve_objective(algorithm, ObjectiveConfig(epsilon=0.1))
    assert (objective.epsilon, objective.epsilon_high) == (0.1, high)
