"""Compute losses and reported metrics from the log-probabilities of answers."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from posttrain.dpo.losses.base import SequenceScores
from posttrain.dpo.losses.kto import KTOMethod
from posttrain.dpo.losses.methods import AnyMethod

METRICS = (
    "reward_accuracy",
    "reward_margin",
    "chosen_reward",
    "rejected_reward",
    "chosen_logprob",
    "rejected_logprob",
    "divergence",
)
"""The metrics that `summary` returns, in the order in which they are written; only kto has `divergence`."""


@dataclass(frozen=True)
class Answers:
    """The inputs of `measure` for some rows; for pairs, all chosen answers come before all rejected ones.

    Attributes:
        logprobs: log π(y|x) in nats, shape [rows].
        tokens: |y|, shape [rows].
        references: log π_ref(y|x) in nats, shape [rows]; None if the method has no reference.
        desirable: which labelled answers are good, bool of shape [rows].
        divergence: kto's z in nats, shape [].
    """

    logprobs: torch.Tensor
    tokens: torch.Tensor
    references: torch.Tensor | None = None
    desirable: torch.Tensor | None = None
    divergence: torch.Tensor | None = None


Measures = dict[str, torch.Tensor]
"""Values by name, each of shape [pairs] or [rows]; only `loss` has a gradient."""


def measure(method: AnyMethod, answers: Answers) -> Measures:
    """Loss, rewards and log-probabilities of each pair, or of each labelled answer."""
    if isinstance(method, KTOMethod):
        return _measure_labelled(method, answers)
    chosen, rejected = answers.logprobs.chunk(2)
    chosen_tokens, rejected_tokens = answers.tokens.chunk(2)
    references = (None, None) if answers.references is None else answers.references.chunk(2)
    scores = SequenceScores(chosen, rejected, chosen_tokens, rejected_tokens, *references)
    chosen_rewards, rejected_rewards = (method.beta * each.detach() for each in method.rewarded(scores))
    return {
        "loss": method.loss(scores),
        "chosen_reward": chosen_rewards,
        "rejected_reward": rejected_rewards,
        "chosen_logprob": chosen.detach(),
        "rejected_logprob": rejected.detach(),
    }


def _measure_labelled(method: KTOMethod, answers: Answers) -> Measures:
    assert answers.references is not None and answers.desirable is not None and answers.divergence is not None
    ratios = answers.logprobs - answers.references
    return {
        "loss": method.loss(ratios, answers.desirable, answers.divergence),
        "reward": method.beta * ratios.detach(),
        "logprob": answers.logprobs.detach(),
        "desirable": answers.desirable,
        "divergence": answers.divergence.expand(len(ratios)),
    }


def summary(measures: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Unweighted means over all pairs (answers): accuracy, margin, rewards and log-probabilities.

    The accuracy is the share of pairs whose chosen answer has the higher reward; a tie counts half, so a model that
    still equals the reference has 0.5. For labelled answers, it is the share among all combinations of a good and a bad
    answer, and the margin is the mean reward of the good answers minus that of the bad ones. Metrics without answers to
    compute them from, as in a step without bad ones, are left out.
    """
    if "desirable" in measures:
        return _labelled_summary(measures)
    margins = measures["chosen_reward"] - measures["rejected_reward"]
    means = {name: _mean(measures[name]) for name in METRICS if name in measures}
    return {"reward_accuracy": _mean(margins.sign()) / 2 + 0.5, "reward_margin": _mean(margins), **means}


def _labelled_summary(measures: Mapping[str, torch.Tensor]) -> dict[str, float]:
    found: dict[str, float] = {}
    kinds = {"chosen": measures["desirable"], "rejected": ~measures["desirable"]}
    rewards = {kind: measures["reward"][mask] for kind, mask in kinds.items()}
    if len(rewards["chosen"]) and len(rewards["rejected"]):
        found["reward_accuracy"] = share_above(rewards["chosen"], rewards["rejected"])
        found["reward_margin"] = _mean(rewards["chosen"]) - _mean(rewards["rejected"])
    for kind, mask in kinds.items():
        if mask.any():
            found[f"{kind}_reward"] = _mean(rewards[kind])
            found[f"{kind}_logprob"] = _mean(measures["logprob"][mask])
    found["divergence"] = float(measures["divergence"][0])
    return {name: found[name] for name in METRICS if name in found}


def share_above(upper: torch.Tensor, lower: torch.Tensor) -> float:
    """The share of all combinations of a value from `upper` and one from `lower` in which the former is higher.

    A tie counts half. Both are 1-D, of any length.
    """
    ordered = lower.sort().values
    # For each of `upper`: how many of `lower` are less, and how many are less or equal.
    below, up_to = (torch.searchsorted(ordered, upper, side=side) for side in ("left", "right"))
    return float((below + up_to).double().mean() / 2 / len(lower))


def _mean(values: torch.Tensor) -> float:
    return float(values.double().mean())
