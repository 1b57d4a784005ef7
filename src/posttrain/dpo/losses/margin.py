"""IPO and the hinge loss, which train the difference of the log-ratios up to a margin."""

from typing import Literal

from pydantic import Field

from posttrain.dpo.losses.base import PairMethod, SequenceScores, Tensor


class IPOMethod(PairMethod):
    """Identity preference optimisation: (r_w/|y_w| − r_l/|y_l| − 1/(2β))².

    Source: Azar et al. 2023, arXiv:2310.12036, eq. 17, where β is called τ. The log-ratios are means per token, as the
    authors confirmed to TRL.
    """

    type: Literal["ipo"]
    """Identity preference optimisation (arXiv:2310.12036): a squared loss with a target, slower to overfit."""

    beta: float = Field(default=0.1, gt=0)
    """Sets the target 1/(2β) for the difference between the mean log-ratios per token."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        difference = scores.chosen_ratio / scores.chosen_tokens - scores.rejected_ratio / scores.rejected_tokens
        return (difference - 1 / (2 * self.beta)).square()


class HingeMethod(PairMethod):
    """Hinge loss on the implied rewards: max(0, 1 − β Δ).

    Source: the loss of SLiC-HF, Zhao et al. 2023, arXiv:2305.10425, on log-ratios as in Liu et al. 2023 (RSO),
    arXiv:2309.06657, eq. 8.
    """

    type: Literal["hinge"]
    """Hinge loss (arXiv:2309.06657): pairs that are separated well enough are no longer trained on."""

    beta: float = Field(default=0.1, gt=0)
    """A pair has no loss once its log-ratios differ by at least 1/β."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """As above."""
        return (1 - self.beta * scores.difference).relu()
