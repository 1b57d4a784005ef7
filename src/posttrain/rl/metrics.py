"""The numbers of a generation: rewards, lengths, and shares of what went wrong."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from posttrain.rl.generation import Generation
from posttrain.rl.rollout.rollout import Rollout


def generation_metrics(generation: Generation) -> dict[str, float | None]:
    """What metrics.jsonl says of a generation; null where no completion has a reward."""
    rewards, rollouts = generation.rewards, generation.rollouts
    there = rewards[~rewards.isnan()]
    made = [each for each in rollouts if each.tokens]
    return {
        "reward": float(there.mean()) if len(there) else None,
        "reward_std": float(there.std()) if len(there) > 1 else None,
        "zero_variance_share": zero_variance_share(rewards),
        "completion_tokens": fmean(each.tokens for each in made) if made else 0.0,
        "longest_completion": float(max((each.tokens for each in made), default=0)),
        "trained_share": fmean(generation.trained),
        **shares(rollouts),
    }


def zero_variance_share(rewards: torch.Tensor) -> float:
    """The share of prompts whose completions have all earned the same, of those of which two or more have a reward.

    `rewards` are NaN where there is none, shape [groups, G].
    """
    highest = rewards.nan_to_num(nan=-math.inf).amax(dim=1)
    lowest = rewards.nan_to_num(nan=math.inf).amin(dim=1)
    comparable = (~rewards.isnan()).sum(dim=1) > 1
    if not comparable.any():
        return 0.0
    return float(torch.isclose(highest, lowest, atol=1e-8)[comparable].double().mean())


def shares(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Means of what is known of each rollout: of rewards by data set, and of scores by grader, where there are some."""
    found: dict[str, list[float]] = {}
    for each in rollouts:
        found.setdefault("too_long_prompts", []).append(float(each.prompt.is_too_long))
        found.setdefault("truncated_share", []).append(float(each.was_cut))
        if each.result is None:
            continue
        found.setdefault("abstained", []).append(float(each.result.status == "abstain"))
        found.setdefault("failed", []).append(float(each.result.status == "error"))
        if each.result.reward is not None:
            found.setdefault(f"rewards/{each.prompt.dataset}", []).append(each.result.reward)
        for name, component in each.result.components.items():
            if component.score is not None:
                found.setdefault(f"graders/{name}", []).append(component.score)
    return {name: fmean(values) for name, values in found.items()}


def step_facts(row: Mapping[str, Any]) -> str:
    """The few numbers of a step that a person watches."""
    parts = [f"loss {row['loss']:.4f}"]
    if row.get("reward") is not None:
        parts.append(f"reward {row['reward']:.3f}±{row['reward_std'] or 0:.3f}")
        parts.append(f"alike {row['zero_variance_share']:.0%}")
        parts.append(f"{row['completion_tokens']:.0f} tokens")
    if row.get("kl") is not None:
        parts.append(f"kl {row['kl']:.4f}")
    return "  ".join([*parts, f"{row['seconds']['all']:.1f} s"])
