"""Policy losses as pure functions of per-token log-probabilities.

In the formulas π is the model being trained, π_old the same model with the weights it had when the generation began,
π_ref the model that training started with, μ the engine that sampled, A the advantage of a completion o, and |o| its
number of tokens. All log-probabilities are in nats, at the sampling temperature. Tensors have shape
[completions, tokens] unless stated otherwise; where `mask` is false they may hold any finite value.
"""

from dataclasses import dataclass

import numpy as np
import torch

from posttrain.rl.presets import Aggregation, Estimator, Level, SamplingCorrection


@dataclass(frozen=True)
class LossInputs:
    """Inputs of a loss.

    Attributes:
        logprobs: log π of each token, with gradient.
        old_logprobs: log π_old; `logprobs` detached if the weights have not changed since.
        advantages: A, shape [completions, 1].
        mask: bool; the tokens that the model sampled and that count.
        reference_logprobs: log π_ref; None without a KL term.
        sampling_logprobs: log μ; None if the engine did not return it.
        remembered: bool, shape [completions, 1]; remembered solutions, which are there for their reward. None if there
            are none.
    """

    logprobs: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    reference_logprobs: torch.Tensor | None = None
    sampling_logprobs: torch.Tensor | None = None
    remembered: torch.Tensor | None = None


@dataclass(frozen=True)
class Clipping:
    """Range of the ratio, 1 − epsilon to 1 + epsilon_high, and its upper bound `delta` for negative advantages."""

    epsilon: float
    epsilon_high: float
    delta: float | None = None


def importance_ratios(inputs: LossInputs, level: Level) -> torch.Tensor:
    """The ratio of new to old policy.

    - token: π / π_old of each token (PPO, arXiv:1707.06347, eq. 6);
    - sequence: (Π π / π_old)^(1/|o|), shape [completions, 1] (GSPO, arXiv:2507.18071, eq. 7);
    - sequence_sum: Π π / π_old, shape [completions, 1] (RLOO as a ratio: its gradient at 1 is that of log π(o)).
    """
    log_ratios = (inputs.logprobs - inputs.old_logprobs) * inputs.mask
    if level == "token":
        return log_ratios.exp()
    total = log_ratios.sum(dim=1, keepdim=True)
    if level == "sequence":
        total = total / inputs.mask.sum(dim=1, keepdim=True).clamp(min=1)
    return total.exp()


def clipped_loss(inputs: LossInputs, ratios: torch.Tensor, clipping: Clipping) -> torch.Tensor:
    """−min(min(ρ, δ)·A, clip(ρ, 1 − ε, 1 + ε_high)·A).

    PPO, arXiv:1707.06347, eq. 7; ε_high as in DAPO, arXiv:2503.14476, eq. 8; δ, which also bounds ρ for A < 0, as in
    INTELLECT-2, arXiv:2505.07291, section 3.4.

    Args:
        ratios: ρ, shape [completions, tokens] or [completions, 1].
    """
    clipped = ratios.clamp(1 - clipping.epsilon, 1 + clipping.epsilon_high)
    bounded = ratios if clipping.delta is None else ratios.clamp(max=clipping.delta)
    loss = -torch.min(bounded * inputs.advantages, clipped * inputs.advantages)
    return loss.expand_as(inputs.logprobs)


def cispo_loss(inputs: LossInputs, ratios: torch.Tensor, clipping: Clipping) -> torch.Tensor:
    """−sg(min(ρ, ε_high))·A·log π, where sg stops the gradient: no token is dropped, however unlikely it was before.

    CISPO, arXiv:2506.13585, eq. 4 and 5; like the paper, without the lower bound.
    """
    return -ratios.clamp(max=clipping.epsilon_high).detach() * inputs.advantages * inputs.logprobs


def clipped_tokens(inputs: LossInputs, ratios: torch.Tensor, clipping: Clipping) -> torch.Tensor:
    """Where the ratio is out of range and the clipped loss has no gradient; bool, shape of `ratios`."""
    low = (ratios < 1 - clipping.epsilon) & (inputs.advantages < 0)
    return low | ((ratios > 1 + clipping.epsilon_high) & (inputs.advantages > 0))


def kl_divergence(inputs: LossInputs, estimator: Estimator, ratios: torch.Tensor) -> torch.Tensor:
    """An estimate of KL(π ‖ π_ref) at each token, with d = log π_ref − log π.

    - k2: ½ d², biased, with the right gradient on the policy's own samples (J. Schulman, "Approximating KL divergence",
      2020);
    - k3: eᵈ − d − 1, unbiased and never negative (same source; GRPO, arXiv:2402.03300, eq. 4);
    - k3_corrected: k3 times the ratio; on the policy's own samples its gradient is that of the divergence, per token
      with token ratios, per completion with their product (DeepSeek-V3.2, arXiv:2512.02556, eq. 7).
    """
    assert inputs.reference_logprobs is not None
    difference = (inputs.reference_logprobs - inputs.logprobs) * inputs.mask
    if estimator == "k2":
        return difference.square() / 2
    k3 = difference.exp() - difference - 1
    return k3 * ratios if estimator == "k3_corrected" else k3


def correction_factors(inputs: LossInputs, correction: SamplingCorrection) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors of the policy loss that correct for completions sampled with other probabilities than the model's.

    ρ = π_old / μ, per token or as a product over the completion: cut to [floor, limit] (truncate; F. Yao et al., "Your
    efficient RL framework secretly brings you off-policy RL training", 2025), or 0 outside of it (mask). With the ratio
    π / π_old in the loss, this is the decoupled objective of AReaL, arXiv:2505.24298, eq. 5: μ may be an older policy.

    Returns:
        The factors, shape [completions, tokens] or [completions, 1], and which ratios are out of range.
    """
    log_ratios = sampling_difference(inputs)
    if correction.kind.startswith("sequence"):
        log_ratios = log_ratios.sum(dim=1, keepdim=True)
    ratios, floor = log_ratios.exp(), correction.floor or 0.0
    beyond = (ratios > correction.limit) | (ratios < floor)
    if correction.kind.endswith("truncate"):
        return ratios.clamp(floor, correction.limit), beyond
    return ratios.masked_fill(beyond, 0.0), beyond


def remembered_factors(inputs: LossInputs) -> torch.Tensor:
    """Factors of the policy loss for remembered solutions: min(1, π_old / μ) of each token.

    Truncated importance sampling (E. L. Ionides, Journal of Computational and Graphical Statistics 17, 2008) with the
    truncation at 1, as the trace of V-trace, arXiv:1802.01561, section 4.1: a token counts less the less likely it has
    become, and never more than one of the model's own. It does not undo that the solution was chosen by its reward.

    Returns:
        The factors, shape [completions, tokens].
    """
    return sampling_difference(inputs).clamp(max=0.0).exp()


def sampling_difference(inputs: LossInputs) -> torch.Tensor:
    """log π_old − log μ of each token that counts; 0 elsewhere, and where the engine returned NaN."""
    assert inputs.sampling_logprobs is not None
    return torch.nan_to_num((inputs.old_logprobs.detach() - inputs.sampling_logprobs) * inputs.mask)


def entropy_threshold(entropies: torch.Tensor, trained_share: float) -> float:
    """The entropy that a share `trained_share` of a step's tokens reach or exceed (arXiv:2506.01939, eq. 6).

    Args:
        entropies: of all tokens that count, on all ranks, shape [tokens].
    """
    # Not torch.quantile, which is limited to 2²⁴ numbers.
    return float(np.quantile(entropies.double().cpu().numpy(), 1 - trained_share)) if len(entropies) else 0.0


@dataclass(frozen=True)
class StepTotals:
    """Divisors for the losses of an optimizer step, over all its micro-batches and ranks.

    Attributes:
        completions: number of completions, including those in which no token counts, but not those of empty slots.
        tokens: number of tokens that count.
        micro_batches: number of micro-batches with such completions in the plan, over all ranks.
        longest: the largest `rollout.max_new_tokens` of the run.
    """

    completions: int
    tokens: int
    micro_batches: int
    longest: int


def token_weights(
    mask: torch.Tensor, aggregation: Aggregation, step: StepTotals, micro_batch_tokens: int
) -> torch.Tensor:
    """The weight of each token's loss, so that Σ weight·loss over a step's micro-batches is the step's loss.

    - completion_mean: 1 / (completions · |o|) (GRPO, arXiv:2402.03300, eq. 3);
    - completion_sum: 1 / completions;
    - step_tokens: 1 / tokens of the step (DAPO, arXiv:2503.14476, eq. 8);
    - micro_batch_mean: 1 / (micro-batches · tokens of the micro-batch) (BNPO, arXiv:2506.02864);
    - constant: 1 / (completions · max_new_tokens) (Dr. GRPO, arXiv:2503.20783, section 3.2).

    Args:
        mask: the tokens that count, shape [completions, tokens].
        micro_batch_tokens: tokens that count in the whole micro-batch; `mask` may be a part of it.
    """
    weights = mask.float()
    if aggregation == "completion_mean":
        return weights / mask.sum(dim=1, keepdim=True).clamp(min=1) / step.completions
    divisor = {
        "completion_sum": step.completions,
        "step_tokens": max(step.tokens, 1),
        "micro_batch_mean": step.micro_batches * max(micro_batch_tokens, 1),
        "constant": step.completions * step.longest,
    }[aggregation]
    return weights / divisor
