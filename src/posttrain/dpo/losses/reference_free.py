"""ORPO, SimPO and CPO, which need no reference."""

import math
from typing import Literal

from pydantic import Field

from posttrain.dpo.losses.base import PairMethod, SequenceScores, Tensor, log_sigmoid

# The smallest positive normal float32.
_TINY = 2.0**-126


class _ReferenceFreeMethod(PairMethod):
    @property
    def needs_reference(self) -> bool:
        return False

    def rewarded(self, scores: SequenceScores) -> tuple[Tensor, Tensor]:
        """log π(y|x) / |y|, as TRL logs rewards."""
        return scores.chosen_mean, scores.rejected_mean


class ORPOMethod(_ReferenceFreeMethod):
    """Odds ratio preference optimisation, with p = exp(log π(y|x) / |y|) and odds(y) = p / (1 − p):
    −log π(y_w|x) / |y_w| − β log σ(log odds(y_w) − log odds(y_l)).

    Source: Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7, where β is called λ. The likelihood covers only the answer,
    as in the paper; TRL includes the prompt's tokens.
    """

    type: Literal["orpo"]
    """Odds ratio preference optimisation (arXiv:2403.07691): SFT and preference in one, without a reference."""

    beta: float = Field(default=0.1, gt=0)
    """Weight λ of the odds-ratio term relative to the likelihood of the chosen answer."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        log_odds = scores.chosen_mean - scores.rejected_mean
        log_odds = log_odds - (_log_of_complement(scores.chosen_mean) - _log_of_complement(scores.rejected_mean))
        return -scores.chosen_mean - self.beta * log_sigmoid(log_odds)


class SimPOMethod(_ReferenceFreeMethod):
    """Simple preference optimisation: −log σ(β (log π(y_w|x) / |y_w| − log π(y_l|x) / |y_l|) − γ).

    Source: Meng et al. 2024, arXiv:2405.14734, eq. 6.
    """

    type: Literal["simpo"]
    """Simple preference optimisation (arXiv:2405.14734): mean log-probabilities, a margin, and no reference."""

    beta: float = Field(default=2.0, gt=0)
    """Scale of the mean log-probabilities; the paper uses 2 to 10."""

    gamma: float = Field(default=1.0, ge=0)
    """Target margin γ between the rewards of the two answers; the paper uses 0.3 to 1.6, or about β/2."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return -log_sigmoid(self.beta * (scores.chosen_mean - scores.rejected_mean) - self.gamma)


class CPOMethod(_ReferenceFreeMethod):
    """Contrastive preference optimisation: −log σ(β (log π(y_w|x) − log π(y_l|x))) − α log π(y_w|x) / |y_w|.

    Source: Xu et al. 2024, arXiv:2401.08417, eq. 3; the likelihood is a mean per token, as in TRL.
    """

    type: Literal["cpo"]
    """Contrastive preference optimisation (arXiv:2401.08417): DPO with a uniform reference, and a likelihood term."""

    beta: float = Field(default=0.1, gt=0)
    """Scale of the difference between the log-probabilities."""

    alpha: float = Field(default=1.0, ge=0)
    """Weight of the likelihood of the chosen answer, which keeps that likelihood from falling; 0 omits it."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return -log_sigmoid(self.beta * (scores.chosen - scores.rejected)) - self.alpha * scores.chosen_mean

    def rewarded(self, scores: SequenceScores) -> tuple[Tensor, Tensor]:
        """log π(y|x), as TRL logs rewards."""
        return scores.chosen, scores.rejected


def _log_of_complement(log_p: Tensor) -> Tensor:
    """log(1 − p) given log p < 0, without loss of precision (Mächler 2012, "Computing log(1 − e^−a)")."""
    # The branch not taken must be finite too, or the gradient would be NaN; log p = 0 is replaced by −_TINY.
    log_p = log_p.clamp(max=-_TINY)
    small = (-log_p.clamp(max=-math.log(2)).exp()).log1p()
    large = (-log_p.clamp(min=-math.log(2)).expm1()).log()
    return small.where(log_p < -math.log(2), large)
