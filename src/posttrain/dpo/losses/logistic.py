"""DPO and its relatives: losses on σ(β Δ), the probability that the chosen answer is preferred."""

import math
from typing import Literal

from pydantic import Field

from posttrain.dpo.losses.base import PairMethod, SequenceScores, Tensor, log_sigmoid


class DPOMethod(PairMethod):
    """Direct preference optimisation: −log σ(β Δ). With label smoothing ε, also called cDPO:
    −(1−ε) log σ(β Δ) − ε log σ(−β Δ).

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; smoothing: Mitchell 2023, "A note on DPO with noisy
    preferences".
    """

    type: Literal["dpo"] = "dpo"
    """Direct preference optimisation (arXiv:2305.18290)."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference: higher stays closer. Usually 0.01 to 0.5."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs assumed to be labelled the wrong way round (cDPO)."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above; the smoothed form is Mitchell's eq. 3."""
        smoothing, logits = self.label_smoothing, self.beta * scores.difference
        return -(1 - smoothing) * log_sigmoid(logits) - smoothing * log_sigmoid(-logits)


class RobustMethod(PairMethod):
    """Robust DPO: (−(1−ε) log σ(β Δ) + ε log σ(−β Δ)) / (1 − 2ε), whose expectation is DPO's loss on clean labels if a
    share ε of them is flipped.

    Source: Chowdhury et al. 2024, arXiv:2403.00409.
    """

    type: Literal["robust"]
    """Robust DPO (arXiv:2403.00409): unbiased if a known share of the labels is wrong."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=0.5)
    """Share ε of pairs that are labelled the wrong way round."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        smoothing, logits = self.label_smoothing, self.beta * scores.difference
        return (-(1 - smoothing) * log_sigmoid(logits) + smoothing * log_sigmoid(-logits)) / (1 - 2 * smoothing)


class EXOMethod(PairMethod):
    """Efficient exact optimisation, the reverse KL divergence between the model's preference and the label's:
    q log(q / (1−ε)) + (1−q) log((1−q) / ε) with q = σ(β Δ).

    Source: Ji et al. 2024, arXiv:2402.00856, eq. 16, for two answers.
    """

    type: Literal["exo"]
    """Efficient exact optimisation (arXiv:2402.00856): reverse KL divergence instead of forward."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference."""

    label_smoothing: float = Field(default=1e-3, gt=0, lt=0.5)
    """Probability ε that the label gives to the rejected answer; at 0 the loss would be infinite."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        smoothing, logits = self.label_smoothing, self.beta * scores.difference
        chosen = logits.sigmoid() * (log_sigmoid(logits) - math.log1p(-smoothing))
        rejected = (-logits).sigmoid() * (log_sigmoid(-logits) - math.log(smoothing))
        return chosen + rejected
