"""Compute advantages from the rewards of groups of completions.

Rewards have shape [groups, G], one row per prompt, with NaN for a completion without a reward: it is left out of means
and deviations, and its advantage is 0.
"""

from typing import assert_never

import torch

from posttrain.rl.presets import Baseline, Scale

_NO_DIVISION_BY_ZERO = 1e-4
"""Added to each standard deviation, as TRL does."""


def advantages(rewards: torch.Tensor, baseline: Baseline, scale: Scale) -> torch.Tensor:
    """A = (r − baseline) / (standard deviation + 1e-4), or r − baseline if `scale` is none; shape [groups, G].

    Baselines, with n the number of the prompt's completions that have a reward:

    - group: the mean of the prompt's rewards (GRPO, arXiv:2402.03300, eq. 4);
    - leave_one_out: the mean of the prompt's other rewards, Σ_{j≠i} rⱼ / (n − 1) (RLOO, arXiv:2402.14740, eq. 8);
    - batch: the mean of all rewards (REINFORCE++, arXiv:2501.03262, eq. 11);
    - none: 0.

    Standard deviations are sample deviations (n − 1), of the prompt's rewards (group) or of all rewards (batch). A
    prompt with a single reward gets advantage 0 if the baseline or the scale is computed from the prompt's own rewards.

    Args:
        rewards: shape [groups, G], NaN for a missing reward.
    """
    found = rewards - _baseline(rewards, baseline)
    if scale == "group":
        found = found / (_deviation(rewards, dim=1).unsqueeze(1) + _NO_DIVISION_BY_ZERO)
    elif scale == "batch":
        found = found / (_deviation(rewards.flatten(), dim=0) + _NO_DIVISION_BY_ZERO)
    return torch.nan_to_num(found, nan=0.0)


def _baseline(rewards: torch.Tensor, baseline: Baseline) -> torch.Tensor:
    match baseline:
        case "group":
            return rewards.nanmean(dim=1, keepdim=True)
        case "leave_one_out":
            others = (~rewards.isnan()).sum(dim=1, keepdim=True) - 1
            return (rewards.nansum(dim=1, keepdim=True) - rewards) / others.masked_fill(others < 1, 0)
        case "batch":
            return rewards.nanmean()
        case "none":
            return torch.zeros_like(rewards)
        case _:
            assert_never(baseline)


def _deviation(rewards: torch.Tensor, dim: int) -> torch.Tensor:
    """The sample standard deviation along `dim`; NaN for fewer than two rewards."""
    count = (~rewards.isnan()).sum(dim=dim)
    squares = (rewards - rewards.nanmean(dim=dim, keepdim=True)).square().nansum(dim=dim)
    return (squares / (count - 1).clamp(min=0)).sqrt()
