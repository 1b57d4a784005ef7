"""Anchored preference optimisation: chosen and rejected answers are each compared with the reference."""

from typing import Literal

from pydantic import Field

from posttrain.dpo.losses.base import PairMethod, SequenceScores, Tensor


class APOZeroMethod(PairMethod):
    """Anchored preference optimisation, zero: 1 − σ(β r_w) + σ(β r_l).

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7.
    """

    type: Literal["apo_zero"]
    """Anchored (arXiv:2408.06266): chosen up, rejected down; for chosen answers better than the model's own."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return 1 - (self.beta * scores.chosen_ratio).sigmoid() + (self.beta * scores.rejected_ratio).sigmoid()


class APODownMethod(PairMethod):
    """Anchored preference optimisation, down: σ(β r_w) + 1 − σ(β (r_w − r_l)).

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 8.
    """

    type: Literal["apo_down"]
    """Anchored (arXiv:2408.06266): both down, rejected more; for chosen answers worse than the model's own."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is kept close to the reference."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return (self.beta * scores.chosen_ratio).sigmoid() + 1 - (self.beta * scores.difference).sigmoid()
