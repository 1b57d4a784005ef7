"""Assemble the loss of a micro-batch from the config's parts and the user's functions."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator

from posttrain.base.user_code import UserCallable, function_digest
from posttrain.errors import ConfigError, RunError
from posttrain.rl.advantages import advantages
from posttrain.rl.losses import (
    Clipping,
    LossInputs,
    cispo_loss,
    clipped_loss,
    clipped_tokens,
    correction_factors,
    importance_ratios,
    kl_divergence,
    remembered_factors,
    sampling_difference,
)
from posttrain.rl.presets import Objective, SamplingCorrection, UserFunction
from posttrain.train.parallel.ranks import summed

_RATIO, _SQUARE = "ratio", "squared ratio"


class Means:
    """Means over the tokens or completions of an optimizer step, on all ranks."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, name: str, values: torch.Tensor, mask: torch.Tensor) -> None:
        """Accumulate `values` where `mask` is true; both have the same shape."""
        found = torch.stack([(values.detach().double() * mask).sum(), mask.sum().double()])
        self._sums[name] = self._sums.get(name, torch.zeros_like(found)) + found

    def over_all_ranks(self, accelerator: Accelerator) -> dict[str, float]:
        """The means by name, except those that counted nothing; every rank must have added the same names."""
        names = sorted(self._sums)
        if not names:
            return {}
        totals = summed(accelerator, torch.stack([self._sums[name] for name in names])).tolist()
        return {name: total / count for name, (total, count) in zip(names, totals, strict=True) if count}


class PolicyObjective:
    """The objective that training optimises.

    Attributes:
        parts: its settings, from the preset and the config.
        needs_all: whether completions of advantage 0 are computed too: for the KL divergence, for the entropy quantile
            over all tokens, or for a user-defined loss.
    """

    def __init__(self, objective: Objective, correction: SamplingCorrection | None = None) -> None:
        self.parts = objective
        self._correction = correction or SamplingCorrection()
        self._clipping = Clipping(objective.epsilon, objective.epsilon_high, objective.delta)
        self._own_advantage = UserTensors(objective.advantage) if objective.advantage is not None else None
        own_loss = objective.policy_loss if isinstance(objective.policy_loss, UserFunction) else None
        self._own_loss = UserTensors(own_loss) if own_loss is not None else None
        self.needs_all = bool(objective.beta) or objective.top_entropy_quantile < 1 or self._own_loss is not None

    def advantages(self, rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Advantages, in the shape of `rewards`: [groups, G], NaN for a completion without a reward.

        Args:
            lengths: tokens of each completion, in the same shape.

        Raises:
            RunError: the user's function failed.
        """
        if self._own_advantage is not None:
            return self._own_advantage(rewards, lengths, shape=rewards.shape)
        return advantages(rewards, self.parts.baseline, self.parts.scale_rewards)

    def token_losses(
        self, inputs: LossInputs, entropies: torch.Tensor, threshold: float | None, means: Means
    ) -> torch.Tensor:
        """The loss of each token, shape [completions, tokens]; meaningless where `inputs.mask` is false.

        Args:
            entropies: of the model at each token, in nats.
            threshold: only tokens of at least this entropy are trained; None trains all.
            means: receives the measured values.
        """
        parts, mask = self.parts, inputs.mask
        if self._correction.needs_logprobs:
            _measure_sampling(inputs, means)
        if self._correction.against_behaviour:
            inputs = replace(inputs, old_logprobs=inputs.old_logprobs - sampling_difference(inputs))
        ratios = importance_ratios(inputs, parts.importance_sampling_level)
        losses = self._policy_losses(inputs, ratios)
        if threshold is not None:
            losses = losses * (entropies >= threshold)
        if self._correction.kind != "none":
            losses = losses * self._corrected(inputs, means)
        if parts.beta:
            divergence = kl_divergence(inputs, parts.kl_estimator, ratios)
            losses = losses + parts.beta * divergence
            means.add("kl", divergence, mask)
        means.add("entropy", entropies, mask)
        if self._own_loss is None:
            means.add("clipped_share", *self._clipped(inputs, ratios))
        return losses

    def _policy_losses(self, inputs: LossInputs, ratios: torch.Tensor) -> torch.Tensor:
        if self._own_loss is not None:
            return self._own_loss(inputs, shape=inputs.logprobs.shape)
        formula = cispo_loss if self.parts.policy_loss == "cispo" else clipped_loss
        return formula(inputs, ratios, self._clipping)

    def _clipped(self, inputs: LossInputs, ratios: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Masks of the ratios that are clipped, and of those that count."""
        if self.parts.policy_loss == "cispo":
            clipped = (ratios > self._clipping.epsilon_high) & (inputs.advantages > 0)
        else:
            clipped = clipped_tokens(inputs, ratios, self._clipping)
        counted = inputs.mask if ratios.shape == inputs.mask.shape else inputs.mask.any(dim=1, keepdim=True)
        return clipped, counted

    def _corrected(self, inputs: LossInputs, means: Means) -> torch.Tensor:
        factors, beyond = correction_factors(inputs, self._correction)
        if inputs.remembered is not None:
            factors = torch.where(inputs.remembered, remembered_factors(inputs), factors)
            beyond = beyond & ~inputs.remembered
        counted = inputs.mask if beyond.shape == inputs.mask.shape else inputs.mask.any(dim=1, keepdim=True)
        means.add("sampling/ratio_beyond_limit", beyond, counted)
        return factors

    def beyond_limits(self, inputs: LossInputs) -> torch.Tensor:
        """The tokens that count and whose ratio, or whose completion's, is out of range; bool, as `inputs.mask`."""
        return correction_factors(inputs, self._correction)[1] & inputs.mask


def _measure_sampling(inputs: LossInputs, means: Means) -> None:
    """How far the probabilities that sampled are from the model's when the step began.

    With ρ = π_old / μ of each token: |log ρ|, KL(μ ‖ π_old) by its estimate ρ − 1 − log ρ, and the means of ρ and ρ²,
    from which `effective_share` is computed.
    """
    difference = sampling_difference(inputs)
    ratios = difference.exp()
    means.add("sampling/logprob_difference", difference.abs(), inputs.mask)
    means.add("sampling/kl", ratios - 1 - difference, inputs.mask)
    means.add(_RATIO, ratios, inputs.mask)
    means.add(_SQUARE, ratios.square(), inputs.mask)


def with_effective_share(means: dict[str, float]) -> dict[str, float]:
    """The means of a step, with (mean ρ)² / mean ρ² in place of both means.

    Σ² / (n·Σ of squares) is the share of n weighted tokens that count as much as as many unweighted ones (L. Kish,
    "Survey Sampling", 1965, section 11.7).
    """
    if _SQUARE not in means:
        return means
    rest = {name: value for name, value in means.items() if name not in (_RATIO, _SQUARE)}
    ratio, square = means[_RATIO], means[_SQUARE]
    # A ratio that is infinite counts as much as all others together, and ratios whose squares are 0 count nothing.
    share = ratio**2 / square if 0 < square < math.inf else 0.0
    return {**rest, "sampling/effective_share": min(1.0, share)}  # rounding can take it beyond 1


class UserTensors:
    """A user-defined function that returns a tensor."""

    def __init__(self, function: UserFunction) -> None:
        """Import the function.

        Raises:
            ConfigError: the file does not exist, cannot be imported, or has no such function.
        """
        self._function, self._options = UserCallable(function.path), dict(function.options)

    def __call__(self, *inputs: Any, shape: Sequence[int]) -> torch.Tensor:
        """Call the function on the inputs and its options.

        Raises:
            RunError: it raised an error, or returned anything other than finite numbers of this shape.
        """
        made = self._function(*inputs, self._options)
        where, place = self._function.where(), self._function.place
        if not isinstance(made, torch.Tensor) or list(made.shape) != list(shape):
            found = list(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
            raise RunError(f"{where}: {place} must return a tensor of shape {list(shape)}, but returned {found}")
        if not bool(made.isfinite().all()):
            raise RunError(f"{where}: {place} returned a number that is not finite")
        return made


def check_user_functions(objective: Objective) -> None:
    """Call each user function once on an example.

    An advantage function gets two prompts with three completions each, a loss three completions.

    Raises:
        ConfigError: a function does not exist, or does not return what it should.
    """
    try:
        if objective.advantage is not None:
            rewards = torch.tensor([[0.0, 1.0, torch.nan], [1.0, 0.5, 0.0]], dtype=torch.float64)
            lengths = torch.tensor([[2, 3, 1], [1, 1, 2]])
            UserTensors(objective.advantage)(rewards, lengths, shape=rewards.shape)
        if isinstance(objective.policy_loss, UserFunction):
            UserTensors(objective.policy_loss)(_example_inputs(), shape=(3, 2))
    except RunError as error:
        raise ConfigError(f"objective: {error}") from error


def digests(objective: Objective) -> dict[str, str]:
    """Hashes of the user functions' files, by the config field that names them; part of a run's identity.

    Raises:
        ConfigError: a file cannot be read.
    """
    functions = {"objective.advantage": objective.advantage, "objective.policy_loss": objective.policy_loss}
    return {
        key: function_digest(key, function.path)
        for key, function in functions.items()
        if isinstance(function, UserFunction)
    }


def _example_inputs() -> LossInputs:
    logprobs = torch.tensor([[-0.5, -1.0], [-2.0, -0.1], [-0.3, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    advantages = torch.tensor([[1.0], [-1.0], [0.0]])
    return LossInputs(logprobs, logprobs.detach(), advantages, mask, logprobs.detach(), logprobs.detach())
