"""KTO: a loss on individually labelled answers."""

from typing import ClassVar, Literal

from pydantic import Field

from posttrain.dpo.losses.base import MethodConfig, Tensor


class KTOMethod(MethodConfig):
    """Kahneman–Tversky optimisation of individually labelled answers, with r = log π(y|x) − log π_ref(y|x) and
    z = max(0, mean of log π(y'|x) − log π_ref(y'|x) over the optimizer step, each prompt with another row's answer):
    λ_D (1 − σ(β (r − z))) for a desirable answer, λ_U (1 − σ(β (z − r))) for an undesirable one. z has no gradient.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306.
    """

    unpaired: ClassVar[bool] = True

    type: Literal["kto"]
    """Kahneman–Tversky optimisation (arXiv:2402.01306): from answers labelled good or bad, or from pairs."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference."""

    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight λ_D of the loss on the n_D desirable answers; the paper keeps λ_D·n_D : λ_U·n_U between 1 and 4/3."""

    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight λ_U of the loss on the n_U undesirable answers."""

    def loss(self, log_ratios: Tensor, desirable: Tensor, divergence: Tensor) -> Tensor:
        """The loss of each answer, shape [rows]; eq. 7 and 8 of the paper.

        Args:
            log_ratios: r in nats, shape [rows].
            desirable: bool, shape [rows].
            divergence: z, shape [], from `kto_divergence`.
        """
        sign = desirable * 2.0 - 1.0
        weight = desirable * self.desirable_weight + ~desirable * self.undesirable_weight
        return weight * (1 - (self.beta * sign * (log_ratios - divergence)).sigmoid())


def kto_divergence(mismatched_ratios: Tensor) -> Tensor:
    """z = max(0, mean r), shape []: how far the model is from the reference, in nats, without gradient.

    Ethayarajh et al. 2024, arXiv:2402.01306, section 4.1: an estimate of the KL divergence from the answers to other
    prompts, clamped at 0 because a divergence is never negative.

    Args:
        mismatched_ratios: log π(y'|x) − log π_ref(y'|x) in nats, where y' is another row's answer; shape [rows].
    """
    return mismatched_ratios.detach().mean().clamp(min=0)
