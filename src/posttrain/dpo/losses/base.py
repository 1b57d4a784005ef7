"""Base classes shared by all preference losses: the log-probabilities they take as input, and their config.

In the formulas, y_w is the chosen answer and y_l the rejected one; log π(y|x) is the trained model's log-probability of
an answer, summed over its tokens, and log π_ref(y|x) the reference's, both in nats; |y| is the number of tokens;
r = log π(y|x) − log π_ref(y|x); Δ = r_w − r_l; and σ is the logistic function.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from posttrain.config.strict import StrictModel

Tensor = Any
"""A `torch.Tensor`. Losses only call its methods: they are also config classes, which must load without torch."""


@dataclass(frozen=True)
class SequenceScores:
    """The inputs of a paired loss; every tensor is of shape [pairs].

    Attributes:
        chosen, rejected: log π(y|x) in nats, summed over the answer's tokens.
        chosen_tokens, rejected_tokens: |y|.
        reference_chosen, reference_rejected: log π_ref(y|x); None if the method has no reference.
    """

    chosen: Tensor
    rejected: Tensor
    chosen_tokens: Tensor
    rejected_tokens: Tensor
    reference_chosen: Tensor | None = None
    reference_rejected: Tensor | None = None

    @property
    def chosen_ratio(self) -> Tensor:
        """r_w, in nats."""
        return self.chosen - self.reference_chosen

    @property
    def rejected_ratio(self) -> Tensor:
        """r_l, in nats."""
        return self.rejected - self.reference_rejected

    @property
    def difference(self) -> Tensor:
        """Δ = r_w − r_l, in nats."""
        return self.chosen_ratio - self.rejected_ratio

    @property
    def chosen_mean(self) -> Tensor:
        """log π(y_w|x) / |y_w|, in nats per token."""
        return self.chosen / self.chosen_tokens

    @property
    def rejected_mean(self) -> Tensor:
        """log π(y_l|x) / |y_l|, in nats per token."""
        return self.rejected / self.rejected_tokens


class MethodConfig(StrictModel):
    """Fields common to all methods."""

    unpaired: ClassVar[bool] = False
    """Whether a row is one labelled answer instead of a pair."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss needs a reference's log-probabilities."""
        return True


class PairMethod(MethodConfig):
    """A method whose rows are pairs. It has a field `beta`, which scales the reported rewards."""

    def loss(self, scores: SequenceScores) -> Tensor:
        """The loss of each pair, shape [pairs]; the caller applies weights and averages over the optimizer step."""
        raise NotImplementedError

    def rewarded(self, scores: SequenceScores) -> tuple[Tensor, Tensor]:
        """The implied rewards of chosen and rejected answers before scaling by β, each of shape [pairs].

        With a reference they are r (arXiv:2305.18290, eq. 5 without the term that depends on the prompt alone).
        """
        return scores.chosen_ratio, scores.rejected_ratio


def log_sigmoid(x: Tensor) -> Tensor:
    """log σ(x) = −log(1 + e^−x)."""
    return -(-x).logaddexp(x.new_zeros(()))
