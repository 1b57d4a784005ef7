"""The methods that compare the trained model with a reference, each with its own fields, its formula and its paper.

In all formulas log π(y|x) is the sum of the log-probabilities of an answer's tokens under the model that is trained,
log π_ref(y|x) that under the reference; y_w is the chosen answer, y_l the rejected one, |y| an answer's number of
tokens, and σ the logistic function. r_w = log π(y_w|x) − log π_ref(y_w|x), r_l likewise, and Δ = r_w − r_l.
"""

from typing import ClassVar, Literal

from pydantic import Field

from posttrain.config.strict import StrictModel


class MethodConfig(StrictModel):
    """What all methods have."""

    has_reference: ClassVar[bool] = True
    """Whether the formula has the log-probabilities of a reference."""

    unpaired: ClassVar[bool] = False
    """Whether a row is one labelled answer instead of a pair."""

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares with the log-probabilities of a reference."""
        return self.has_reference


class DPOMethod(MethodConfig):
    """Direct preference optimisation: −log σ(β Δ). With label smoothing ε, also called cDPO:
    −(1−ε) log σ(β Δ) − ε log σ(−β Δ).

    Source: Rafailov et al. 2023, arXiv:2305.18290, eq. 7; smoothing: Mitchell 2023, "A note on DPO with noisy
    preferences".
    """

    type: Literal["dpo"] = "dpo"
    """Direct preference optimisation (arXiv:2305.18290)."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference: higher stays closer. Usually 0.01 to 0.5."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """The share of pairs that are taken to be labelled the wrong way round (cDPO)."""


class IPOMethod(MethodConfig):
    """Identity preference optimisation: (r_w/|y_w| − r_l/|y_l| − 1/(2β))².

    Source: Azar et al. 2023, arXiv:2310.12036, eq. 17, where β is called τ. The log-ratios are means per token, as the
    authors confirmed to TRL.
    """

    type: Literal["ipo"]
    """Identity preference optimisation (arXiv:2310.12036): a squared loss with a target, slower to overfit."""

    beta: float = Field(default=0.1, gt=0)
    """Sets the target 1/(2β) for the difference of the mean log-ratios per token."""


class HingeMethod(MethodConfig):
    """Hinge loss on the implied rewards: max(0, 1 − β Δ).

    Source: the loss of SLiC-HF, Zhao et al. 2023, arXiv:2305.10425, on log-ratios as in Liu et al. 2023 (RSO),
    arXiv:2309.06657.
    """

    type: Literal["hinge"]
    """Hinge loss (arXiv:2309.06657): pairs that are told apart well enough are no longer trained."""

    beta: float = Field(default=0.1, gt=0)
    """1/β is the difference of the log-ratios from which on a pair has no loss."""


class RobustMethod(MethodConfig):
    """Robust DPO: (−(1−ε) log σ(β Δ) + ε log σ(−β Δ)) / (1 − 2ε), which has DPO's expected loss on clean labels where
    a share ε of them is flipped.

    Source: Chowdhury et al. 2024, arXiv:2403.00409.
    """

    type: Literal["robust"]
    """Robust DPO (arXiv:2403.00409): unbiased where a known share of the labels is wrong."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference."""

    label_smoothing: float = Field(default=0.1, ge=0, lt=0.5)
    """The share ε of pairs that are labelled the wrong way round."""


class EXOMethod(MethodConfig):
    """Efficient exact optimisation, the reverse KL divergence of the model's preference from the label's:
    q log(q / (1−ε)) + (1−q) log((1−q) / ε) with q = σ(β Δ).

    Source: Ji et al. 2024, arXiv:2402.00856, eq. 16, for two answers.
    """

    type: Literal["exo"]
    """Efficient exact optimisation (arXiv:2402.00856): reverse instead of forward KL divergence."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference."""

    label_smoothing: float = Field(default=1e-3, gt=0, lt=0.5)
    """The probability ε that the label gives to the rejected answer; above 0, or the loss would be infinite."""


class APOZeroMethod(MethodConfig):
    """Anchored preference optimisation, zero: 1 − σ(β r_w) + σ(β r_l).

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 7.
    """

    type: Literal["apo_zero"]
    """Anchored (arXiv:2408.06266): chosen up, rejected down; for chosen answers better than the model's own."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference."""


class APODownMethod(MethodConfig):
    """Anchored preference optimisation, down: σ(β r_w) + 1 − σ(β (r_w − r_l)).

    Source: D'Oosterlinck et al. 2024, arXiv:2408.06266, eq. 8.
    """

    type: Literal["apo_down"]
    """Anchored (arXiv:2408.06266): both down, rejected more; for chosen answers worse than the model's own."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference."""


class KTOMethod(MethodConfig):
    """Kahneman–Tversky optimisation, of answers labelled each by itself, with r = log π(y|x) − log π_ref(y|x) and
    z = max(0, mean of log π(y'|x) − log π_ref(y'|x) over the optimizer step, each prompt with another row's answer):
    λ_D (1 − σ(β (r − z))) for a desirable answer, λ_U (1 − σ(β (z − r))) for an undesirable one. z has no gradient.

    Source: Ethayarajh et al. 2024, arXiv:2402.01306.
    """

    unpaired: ClassVar[bool] = True

    type: Literal["kto"]
    """Kahneman–Tversky optimisation (arXiv:2402.01306): from answers labelled good or bad, or from pairs."""

    beta: float = Field(default=0.1, gt=0)
    """How strongly the model is held to the reference."""

    desirable_weight: float = Field(default=1.0, gt=0)
    """Weight λ_D of the loss on the n_D desirable answers; the paper keeps λ_D·n_D : λ_U·n_U between 1 and 4/3."""

    undesirable_weight: float = Field(default=1.0, gt=0)
    """Weight λ_U of the loss on the n_U undesirable answers."""
